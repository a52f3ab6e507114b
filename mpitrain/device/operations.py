"""The functions of layers on the GPU, its matrix products, and the update rules as one kernel each."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mpitrain.algorithms import averaging
from mpitrain.algorithms.optimizers import adamw, sgd
from mpitrain.compression.residual import INDEX, NO_LEVELS
from mpitrain.errors import TrainingFailed
from mpitrain.flat import Array
from mpitrain.kernels.launch import Kernels
from mpitrain.models.patches import PatchProduct

NONE = 0xFFFFFFFF  # reported instead of the index of the first bad element if there is none
N, T = 0, 1  # CUBLAS_OP_N, CUBLAS_OP_T
FLOAT, DOUBLE = 0, 1  # CUDA_R_32F, CUDA_R_64F
#: How float32 products are computed; operands, results and sums are float32 in any case.
#: CUBLAS_COMPUTE_32F, …_32F_FAST_TF32 and …_32F_FAST_16BF of cublas_api.h.
COMPUTE = {"float32": 68, "tf32": 77, "bf16": 75}
COMPUTE_DOUBLE = 70  # CUBLAS_COMPUTE_64F
DEFAULT = -1  # CUBLAS_GEMM_DEFAULT


class Operations(Kernels):
    """The kernels, matrix products with cuBLAS, and the two kernels that report to the host.

    `fused` maps a rule of optimizers and algorithms to a single kernel that gives the same bits. `convolution` exists
    only with cuDNN.
    """

    convolution: Callable[..., PatchProduct]

    def __init__(self, cupy: Any, matmul: str) -> None:
        super().__init__(cupy)
        self._cupy = cupy
        self.matmul = Products(cupy, matmul)
        self._entries = [cupy.empty(0, np.uint32)] * 2  # words and levels
        self._report = cupy.empty(2, np.uint32)
        alike = sgd.sgd, sgd.classical, sgd.krizhevsky, sgd.mdownpour, adamw.adamw, averaging.moving_average
        self.fused: dict[Callable[..., Any], Callable[..., Any]] = {
            **{rule: _without_scratch(getattr(self, rule.__name__)) for rule in alike},
            sgd.look_ahead: self.look_ahead,
        }

    def emit(
        self, residual: Array, gradient: Array, words: Array, *, levels: Array = NO_LEVELS, first: int = 0, **how: Any
    ) -> int:
        """Like compression.residual.accumulate; `words` and `levels` are in host memory, and only those emitted
        are copied."""
        words_here, levels_here = self._room(words.size, levels.size)
        self.accumulate(residual, gradient, words_here, self._report, levels_here if levels.size else None, **how)
        count, bad = (int(number) for number in self._report.get())
        if bad != NONE:
            raise TrainingFailed(f"element {first + bad} of the residual is not finite: training has diverged")
        for here, there in ((words_here, words), (levels_here, levels)):
            if here[:count].size:
                here[:count].get(out=there[:count])
        words[:count] += np.uint32(first)
        return count

    def apply_words(self, words: Array, step: int, counts: Array, weights: Array, levels: Array = NO_LEVELS) -> None:
        """Like compression.replica.apply; `words` and `levels` are in host memory."""
        if counts.shape != weights.shape or (words.size and words[-1] & INDEX >= counts.size):
            raise ValueError(f"words up to {words[-1:] & INDEX} for counts {counts.shape} and weights {weights.shape}")
        if not words.size:
            return
        words_here, levels_here = (here[: words.size] for here in self._room(counts.size, levels.size and counts.size))
        words_here.set(np.ascontiguousarray(words))
        if levels.size:
            levels_here.set(np.ascontiguousarray(levels))
        failed = self._report[:1]
        failed.fill(NONE)
        self.apply(words_here, step, counts, weights, failed, levels_here if levels.size else None)
        first = int(failed.get()[0])
        if first != NONE:
            raise TrainingFailed(f"weight {first} would leave ±32, the range of integer weights")

    def _room(self, *sizes: int) -> list[Array]:
        """Device memory for as many words, and levels."""
        for number, size in enumerate(sizes):
            if self._entries[number].size < size:
                self._entries[number] = self._cupy.empty(size, np.uint32)
        return [memory[:size] for memory, size in zip(self._entries, sizes, strict=True)]


def _without_scratch(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel with a rule's signature, without the last argument, scratch, which it does not need."""

    def rule(*arrays: Array, **scalars: float) -> None:
        kernel(*arrays[:-1], **scalars)

    return rule


class Products:
    """`products(a, b, out)`: out ← a·b with cuBLAS; `a` and `b` may be transposed views, `out` too.

    NumPy's order of rows is cuBLAS's order of columns: the row-major C = A·B is the column-major Cᵀ = Bᵀ·Aᵀ in the same
    memory, so the operands are swapped and nothing is copied.
    """

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
