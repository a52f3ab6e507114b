"""Many ranks in one process, in virtual time: MPI's calls, and the program's own protocols over them."""

from mpitrain.simulation.job import Job
from mpitrain.simulation.network import Link, Network
from mpitrain.simulation.scheduler import Deadlock

__all__ = ["Deadlock", "Job", "Link", "Network"]
