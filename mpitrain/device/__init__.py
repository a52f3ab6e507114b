"""Where a rank computes: the CPU, or a GPU through CuPy. One network code and one set of protocols serve both."""

from mpitrain.device.choice import agree, available, choose, describe, why_staged
from mpitrain.device.cpu import CPU, Cpu

__all__ = ["CPU", "Cpu", "agree", "available", "choose", "describe", "why_staged"]
