"""What launchers tell each process they start, by environment variables."""

from collections.abc import Mapping

#: The number of a rank on its node: Open MPI, MPICH and Intel MPI, Cray, Slurm. Slurm's comes last: within a batch
#: script it is 0, and mpirun passes that on to all ranks.
LOCAL_RANK = (
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PMI_LOCAL_RANK",
    "PALS_LOCAL_RANKID",
    "SLURM_LOCALID",
)


def local_rank_of(environment: Mapping[str, str], otherwise: int) -> int:
    """A process's number on its node; `otherwise` if no launcher says it."""
    return next((int(environment[name]) for name in LOCAL_RANK if environment.get(name, "").isdigit()), otherwise)
