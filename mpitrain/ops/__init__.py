"""The array functions of the layers on the CPU: NumPy's, and Numba loops where NumPy needs several passes.

Layers call them through their workspace, so that a module with the same names can serve another device.
All arrays are C-contiguous; images are NHWC.
"""

from mpitrain.ops.cross_entropy import logistic_gradient, logistic_loss, softmax_gradient, softmax_loss
from mpitrain.ops.dropout import dropout
from mpitrain.ops.elementwise import add_scaled, relu_backward, sigmoid, sigmoid_backward
from mpitrain.ops.neighbours import channel_window_sum
from mpitrain.ops.normalisation import lrn_backward, lrn_forward
from mpitrain.ops.patches import add_patches, gather_patches
from mpitrain.ops.pooling import max_pool, max_unpool
from mpitrain.ops.products import add_bias, column_sums, matmul

__all__ = [
    "add_bias",
    "add_patches",
    "add_scaled",
    "channel_window_sum",
    "column_sums",
    "dropout",
    "gather_patches",
    "logistic_gradient",
    "logistic_loss",
    "lrn_backward",
    "lrn_forward",
    "matmul",
    "max_pool",
    "max_unpool",
    "relu_backward",
    "sigmoid",
    "sigmoid_backward",
    "softmax_gradient",
    "softmax_loss",
]
