"""Matrix products on the GPU with cuBLAS, written to given arrays, in the chosen precision.

NumPy's order of rows is cuBLAS's order of columns: the row-major C = A·B is the column-major Cᵀ = Bᵀ·Aᵀ in the same
memory, so the operands are swapped and nothing is copied.
"""

from typing import Any

import numpy as np

from mpitrain.flat import Array

N, T = 0, 1  # CUBLAS_OP_N, CUBLAS_OP_T
FLOAT, DOUBLE = 0, 1  # CUDA_R_32F, CUDA_R_64F
#: How float32 products are computed; operands, results and sums are float32 in any case.
#: CUBLAS_COMPUTE_32F, …_32F_FAST_TF32 and …_32F_FAST_16BF of cublas_api.h.
COMPUTE = {"float32": 68, "tf32": 77, "bf16": 75}
COMPUTE_DOUBLE = 70  # CUBLAS_COMPUTE_64F
DEFAULT = -1  # CUBLAS_GEMM_DEFAULT


class Products:
    """`products(a, b, out)`: out ← a·b; `a` and `b` may be transposed views, `out` too."""

    def __init__(self, cupy: Any, precision: str) -> None:
        self._cupy, self._compute = cupy, COMPUTE[precision]
        self._scalars = {kind: np.array([1, 0], kind) for kind in (np.float32, np.float64)}
        # Computed once: NumPy needs as long to return an address as cuBLAS to launch a product.
        self._addresses = {k: (s.ctypes.data, s[1:].ctypes.data) for k, s in self._scalars.items()}

    def __call__(self, a: Array, b: Array, out: Array) -> None:
        if not out.size:
            return
        if not out.flags.c_contiguous and out.strides[1] != out.itemsize:
            a, b, out = b.T, a.T, out.T
        rows, columns = out.shape
        double = out.dtype == np.float64
        kind, compute = (DOUBLE, COMPUTE_DOUBLE) if double else (FLOAT, self._compute)
        one, zero = self._addresses[out.dtype.type]
        (first, lda), (second, ldb) = _operand(b), _operand(a)
        self._cupy.cuda.cublas.gemmEx(
            self._cupy.cuda.get_cublas_handle(),
            *(first, second, columns, rows, a.shape[1]),
            one,
            *(b.data.ptr, kind, lda),
            *(a.data.ptr, kind, ldb),
            zero,
            *(out.data.ptr, kind, _operand(out)[1]),
            *(compute, DEFAULT),
        )


def _operand(matrix: Array) -> tuple[int, int]:
    """Whether cuBLAS has to transpose the matrix in this memory, and its leading dimension, which may exceed the length
    of its rows."""
    if matrix.flags.c_contiguous:
        return N, matrix.shape[1]
    if matrix.flags.f_contiguous:
        return T, matrix.shape[0]
    rows, columns = (stride // matrix.itemsize for stride in matrix.strides)
    if columns == 1 and rows >= matrix.shape[1]:
        return N, rows
    if rows == 1 and columns >= matrix.shape[0]:
        return T, columns
    raise ValueError(f"a matrix of shape {matrix.shape} and strides {matrix.strides} is neither rows nor columns")
