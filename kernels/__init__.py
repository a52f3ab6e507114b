"""CUDA kernels (*.cu), the functions that launch them (`launch`), and what they compute, in NumPy (`reference`)."""
