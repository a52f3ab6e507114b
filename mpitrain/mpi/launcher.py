"""Load and start MPI, and refuse the launcher of another MPI, which starts processes that do not know of each other;
tell which MPI it is.

Importing this module loads MPI; `initialise` starts it.
"""

import ctypes
import os
import sys
import warnings
from pathlib import Path

import mpi4py

from mpitrain.errors import BadInput
from mpitrain.start import ranks_of

mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
warnings.filterwarnings("ignore", message="suspicious MPI execution environment")  # refused below

from mpi4py import MPI  # noqa: E402
from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, InPlace, TargetSpec  # noqa: E402, F401


def initialise() -> None:
    """Call MPI_Init, which waits for all ranks, if that has not been done. Raises BadInput for an MPICH that does not
    understand Open MPI's launcher, and would end the process in this call."""
    if MPI.Is_initialized():
        return
    size = os.environ.get("OMPI_COMM_WORLD_SIZE", "")
    foreign = size.isdecimal() and int(size) > 1 and "PMI_SIZE" not in os.environ and MPI.get_vendor()[0] == "MPICH"
    if foreign and not hasattr(ctypes.CDLL(MPI.__file__), "PMIx_Init"):
        raise _foreign_launcher(int(size), "MPI does not hear from it")
    _require_connection()
    choose_windows()
    try:
        start = ctypes.CDLL(MPI.__file__).MPI_Init_thread  # looked for in the library that mpi4py is bound to
    except (OSError, AttributeError):
        MPI.Init_thread(MPI.THREAD_SERIALIZED)
        return
    # mpi4py's function holds Python's lock, so that the watchdog's thread could not see how long it takes.
    start(None, None, MPI.THREAD_SERIALIZED, ctypes.byref(ctypes.c_int()))
    for communicator in (MPI.COMM_SELF, MPI.COMM_WORLD):
        communicator.Set_errhandler(MPI.ERRORS_RETURN)  # errors are exceptions, as mpi4py has it


def choose_windows() -> None:
    """Leave out the implementations of one-sided access that this Open MPI cannot use here, unless the user has chosen.
    UCX's, without InfiniBand, fails in every rank with a line on standard error, then steps aside; before version 5,
    that of `rdma` crashes in MPI_Compare_and_swap between ranks of one node."""
    name, version = MPI.get_vendor()
    without = ["ucx"] if not Path("/sys/class/infiniband").exists() else []
    without += ["rdma"] if version < (5,) else []
    if name == "Open MPI" and without:
        os.environ.setdefault("OMPI_MCA_osc", "^" + ",".join(without))


def _require_connection() -> None:
    """Raise BadInput where the connection to MPICH's mpirun is closed: a program that it has started has started this
    one, and passed on the variables alone, with which MPI_Init would end the process."""
    given = os.environ.get("PMI_FD", "")
    if given.isdecimal() and MPI.get_vendor()[0] in ("MPICH", "Intel MPI"):
        try:
            os.fstat(int(given))
        except OSError:
            raise BadInput(
                f"PMI_FD = {given}: closed, as in what a program under mpirun starts; start this one without mpirun, "
                "or without the environment variables that begin with PMI_"
            ) from None


def require_one_job() -> None:
    """Raise BadInput if a launcher has started several processes and each is alone: it is the launcher of another MPI,
    and each process would do the whole work."""
    started, known = ranks_of(os.environ), MPI.COMM_WORLD.size
    if started > known:
        raise _foreign_launcher(started, f"MPI knows of {known}")


def _foreign_launcher(started: int, what: str) -> BadInput:
    beside = Path(sys.executable).with_name("mpirun")
    own = f"{beside} is its own" if beside.exists() else "start them with its own mpirun"
    return BadInput(
        f"the launcher has started {started} processes, but {what}: it is not the launcher of {library()}; {own}"
    )


def library() -> str:
    """Vendor and version of the MPI library, one line."""
    return " ".join(MPI.Get_library_version().splitlines()[0].strip("\0 ,").split())


def cuda_aware(wanted: str = "auto") -> tuple[bool, str]:
    """Whether the MPI library takes device buffers, and who says so: `wanted` (run.cuda_aware), else the library."""
    if wanted != "auto":
        return wanted == "yes", f"run.cuda_aware = {wanted!r}"
    kinds = MPI.COMM_WORLD.Get_info().Get("mpi_memory_alloc_kinds") or ""
    if "cuda" in kinds:
        return True, f"mpi_memory_alloc_kinds = {kinds}"
    name, version = MPI.get_vendor()
    if name == "MPICH" and version < (4,):  # its MPIX_Query_cuda_support ends the process by an assertion
        return False, "MPICH before version 4 cannot be asked"
    try:  # a function of Open MPI and MPICH that mpi4py lacks, in the library that mpi4py is bound to
        query = ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support
    except (OSError, AttributeError):
        return False, "the library names no CUDA memory"
    return bool(query()), f"MPIX_Query_cuda_support() = {query()}"
