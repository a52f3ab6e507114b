"""The array functions of the layers on the CPU: NumPy's, and Numba loops where NumPy needs several passes.

Layers call them through their workspace, so that a module with the same names can serve another device.
All arrays are C-contiguous; images are NHWC.
"""

from mpitrain.ops.cross_entropy import logistic_gradient, logistic_loss, softmax_gradient, softmax_loss
from mpitrain.ops.dropout import dropout
from mpitrain.ops.elementwise import (
    add_bias,
    add_scaled,
    column_sums,
    matmul,
    relu_backward,
    sigmoid,
    sigmoid_backward,
)
from mpitrain.ops.normalisation import LRN_HALF_MAX, channel_window_sum, lrn_backward, lrn_forward
from mpitrain.ops.patches import add_patches, gather_patches
from mpitrain.ops.pooling import max_pool, max_unpool
