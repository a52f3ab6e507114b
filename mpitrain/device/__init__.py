"""Where a rank computes: the CPU, or a GPU through CuPy. One network code and one set of protocols serve both."""

from mpitrain.device.choice import choose, describe
from mpitrain.device.cpu import CPU, Cpu

__all__ = ["CPU", "Cpu", "choose", "describe"]
