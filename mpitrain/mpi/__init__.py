"""The only package that imports mpi4py: start and abort, messages, collectives, windows."""

from mpitrain.mpi.launcher import MPI, cuda_aware, library
from mpitrain.mpi.process import abort, abort_on_exception, end_as_commands_do, traceback_of_rank
from mpitrain.mpi.transport import Transport
from mpitrain.mpi.waiting import Traffic
