"""CUDA kernels (*.cu), the functions that launch them (`launch`), and their NumPy equivalents (`reference`)."""
