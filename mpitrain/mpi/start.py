"""Loading MPI with what it must be told before, and ending the job. mpitrain.mpi alone imports mpi4py."""

import os
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType

import mpi4py

if not Path("/sys/class/infiniband").exists():
    # Without such a network Open MPI's UCX windows fail in every rank with a line on standard error, then step aside.
    os.environ.setdefault("OMPI_MCA_osc", "^ucx")
mpi4py.rc.thread_level = "funneled"

from mpi4py import MPI  # noqa: E402


def abort_on_exception() -> None:
    """Make an uncaught exception end the whole job with its traceback; without it the other ranks would hang."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        lines = traceback.format_exception(kind, error, trace)
        sys.stderr.write(f"rank {MPI.COMM_WORLD.rank}:\n{''.join(lines)}")
        abort(1)

    sys.excepthook = hook


def abort(status: int) -> None:
    """End every rank, once what this one has printed is on its way: launchers drop what comes with the abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(1.0)
    MPI.COMM_WORLD.Abort(status)


def library() -> str:
    """Vendor and version of the MPI library, one line."""
    return MPI.Get_library_version().splitlines()[0].strip("\0 ,").replace("\t", " ")


def cuda_aware() -> bool:
    """Whether the MPI library says that it takes device buffers; MPITRAIN_CUDA_AWARE=0|1 overrides it."""
    if (said := os.environ.get("MPITRAIN_CUDA_AWARE")) is not None:
        return said == "1"
    kinds = MPI.COMM_WORLD.Get_info().Get("mpi_memory_alloc_kinds") if MPI.Is_initialized() else None
    return "cuda" in (kinds or "")
