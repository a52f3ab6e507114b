"""cuBLAS's general product over host memory, with its columns-first order, transposes and leading dimensions."""

import ctypes

import numpy as np

_KINDS = {0: (np.float32, ctypes.c_float), 1: (np.float64, ctypes.c_double)}
_COMPUTE = {68: 0, 75: 0, 77: 0, 70: 1}  # CUBLAS_COMPUTE_… and the type it goes with


def _columns(address: int, kind: int, rows: int, columns: int, leading: int) -> np.ndarray:
    """The matrix [rows, columns] whose columns lie `leading` elements apart."""
    _dtype, letter = _KINDS[kind]
    if leading < max(1, rows):
        raise ValueError(f"leading dimension {leading} of a matrix of {rows} rows")
    size = leading * (columns - 1) + rows
    flat = np.ctypeslib.as_array((letter * size).from_address(address))
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (flat.itemsize, leading * flat.itemsize))


def gemmEx(handle, transa, transb, m, n, k, alpha, A, Atype, lda, B, Btype, ldb, beta, C, Ctype, ldc, compute, algo):
    """C ← alpha·op(A)·op(B) + beta·C; C [m, n], the sum over k."""
    from .cuda import current, launched

    current().flush()
    launched.append("gemmEx")
    if not Atype == Btype == Ctype == _COMPUTE[compute]:
        raise ValueError(f"types {Atype}, {Btype}, {Ctype} with compute type {compute}")
    a = _columns(A, Atype, *((k, m) if transa else (m, k)), lda)
    b = _columns(B, Btype, *((n, k) if transb else (k, n)), ldb)
    c = _columns(C, Ctype, m, n, ldc)
    letter = _KINDS[Ctype][1]
    scale, keep = letter.from_address(alpha).value, letter.from_address(beta).value
    product = scale * ((a.T if transa else a) @ (b.T if transb else b))
    c[:] = product + keep * c if keep else product
