"""CUDA kernels (*.cu) and the functions that launch them (`launch`)."""
