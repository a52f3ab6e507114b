"""The array functions of the layers that NumPy has no single pass for, compiled by Numba.

Layers reach them through their workspace, so that another module with these names serves another device.
All arrays are C-contiguous; images are NHWC.
"""

from mpitrain.ops.elementwise import add_scaled, relu_backward, sigmoid, sigmoid_backward
from mpitrain.ops.neighbours import channel_window_sum
from mpitrain.ops.patches import add_patches, gather_patches
from mpitrain.ops.pooling import max_pool, max_unpool

__all__ = [
    "add_patches",
    "add_scaled",
    "channel_window_sum",
    "gather_patches",
    "max_pool",
    "max_unpool",
    "relu_backward",
    "sigmoid",
    "sigmoid_backward",
]
