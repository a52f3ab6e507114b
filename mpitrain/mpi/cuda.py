"""Whether the MPI library takes buffers in GPU memory."""

import ctypes
from collections.abc import Callable

from mpitrain.mpi.launcher import MPI


def cuda_aware(wanted: str = "auto") -> tuple[bool, str]:
    """Whether the MPI library takes device buffers, and who says so: `wanted` (run.cuda_aware), else the library."""
    if wanted != "auto":
        return wanted == "yes", f"run.cuda_aware = {wanted!r}"
    kinds = MPI.COMM_WORLD.Get_info().Get("mpi_memory_alloc_kinds") or ""
    if "cuda" in kinds:
        return True, f"mpi_memory_alloc_kinds = {kinds}"
    query = _cuda_query()
    if query is None:
        return False, "the library names no CUDA memory"
    return bool(query()), f"MPIX_Query_cuda_support() = {query()}"


def _cuda_query() -> Callable[[], int] | None:
    """MPIX_Query_cuda_support of Open MPI and MPICH, which mpi4py does not have; None where the library has it not."""
    try:
        return ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support  # looked for in the library that mpi4py is bound to
    except (OSError, AttributeError):
        return None
