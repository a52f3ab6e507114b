"""Whether the MPI library takes buffers in GPU memory."""

import ctypes

from mpitrain.mpi.launcher import MPI


def cuda_aware(wanted: str = "auto") -> tuple[bool, str]:
    """Whether the MPI library takes device buffers, and who says so: `wanted` (run.cuda_aware), else the library."""
    if wanted != "auto":
        return wanted == "yes", f"run.cuda_aware = {wanted!r}"
    kinds = MPI.COMM_WORLD.Get_info().Get("mpi_memory_alloc_kinds") or ""
    if "cuda" in kinds:
        return True, f"mpi_memory_alloc_kinds = {kinds}"
    try:  # a function of Open MPI and MPICH that mpi4py lacks, in the library that mpi4py is bound to
        query = ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support
    except (OSError, AttributeError):
        return False, "the library names no CUDA memory"
    return bool(query()), f"MPIX_Query_cuda_support() = {query()}"
