"""Spare ranks (`run.spares`): they wait while the others train, and take the places of ranks that are lost."""

from collections.abc import Callable

import numpy as np

from mpitrain.api.options import TrainOptions
from mpitrain.config import RunOptions
from mpitrain.errors import BadInput, Overdue, RankLost, some
from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import agreed
from mpitrain.mpi.enduring import EnduringCommunicator

SPARE = "a spare"  # what such a rank holds of the training where another one is lost
NAP = 0.05  # seconds between two looks
REFUSED = 2  # the status of bad input


def beside_spares(
    transport: Transport, options: TrainOptions, run: RunOptions, train: Callable[[Transport], int]
) -> int:
    """What `train` returns on the ranks that train, once it has; the others wait. Collective; raises BadInput, and
    RankLost."""
    count = agreed(transport, lambda: _training(transport, options, run), "the spare ranks")
    if count == transport.size:
        return train(transport)
    if transport.rank == 0 and run.progress != "none" and not options.least_ranks:
        print(f"{some(count, 'rank')} of {transport.size} train, the others are spares", flush=True)
    part, refused = transport.first(count), BadInput.known("", spoken_here=False)
    status = np.zeros(1, np.int64)
    if part is not None:
        try:
            status[0] = train(part)
        except BadInput as error:
            if not error.agreed:
                raise
            status[0], refused = REFUSED, error
    try:
        over = transport.comm.Ibcast(status, 0)
        transport.until(over.Test, "the end of the training", [0], nap=NAP)
    except (Overdue, RankLost) as error:
        if part is None and (error.silent or isinstance(error, RankLost)):
            raise RankLost(error.silent, SPARE) from error
        if part is None:
            raise  # else the training is over, whoever is lost now
    if status[0] == REFUSED:
        raise refused  # so that all leave together
    return int(status[0])


def _training(transport: Transport, options: TrainOptions, run: RunOptions) -> int:
    """How many of these ranks train. Raises BadInput naming run.spares."""
    if not isinstance(transport.comm, EnduringCommunicator):  # a rank that is alone, or simulated
        return transport.size
    if options.ranks:  # as many as before ranks were lost
        return min(options.ranks, transport.size)
    if run.spares >= transport.size:
        raise BadInput(f"run.spares = {run.spares}: none of {some(transport.size, 'rank')} is left to train")
    return transport.size - run.spares
