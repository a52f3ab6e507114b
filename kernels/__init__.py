"""CUDA C++ sources, installed with the package as `mpitrain.kernels`. There are none yet: ranks compute on the CPU."""
