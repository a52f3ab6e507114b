"""The device of a rank: the CPU, or a GPU through CuPy. Networks and protocols use the same code for both."""

from mpitrain.device.choice import agree, available, choose, describe, why_staged
from mpitrain.device.cpu import CPU, Cpu
