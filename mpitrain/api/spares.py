"""Spare ranks (`run.spares`): they wait while the others train, and take the places of ranks that are lost."""

from collections.abc import Callable
from contextlib import suppress

import numpy as np

from mpitrain.api.options import TrainOptions
from mpitrain.config import RunOptions
from mpitrain.errors import BadInput, Overdue, RankLost, some
from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import agreed
from mpitrain.mpi.enduring import EnduringCommunicator

SPARE = "a spare"  # stands in RankLost.held for what a spare holds of the training: nothing
NAP = 0.05  # seconds between two tests for the end of the training
REFUSED = 2  # the status of bad input


def beside_spares(
    transport: Transport, options: TrainOptions, run: RunOptions, train: Callable[[Transport], int]
) -> int:
    """Call `train` with the ranks that train, while the spares wait; returns its status on all ranks. Collective;
    raises BadInput and RankLost."""
    count = agreed(transport, lambda: _training(transport, options, run), "the spare ranks")
    if count == transport.size:
        return train(transport)
    if transport.rank == 0 and run.progress != "none" and not options.least_ranks:
        print(f"{count} of {transport.size} ranks train; spares: {transport.size - count}", flush=True)
    part = transport.first(count)
    if part is None:
        return _stand_by(transport)
    try:
        status = train(part)
    except BadInput as error:
        if error.agreed:
            _let_go(transport, REFUSED)
        raise
    _let_go(transport, status)
    return status


def _let_go(transport: Transport, status: int) -> None:
    """Tell the spares that the training is over, and its status. It stays over even if a rank is lost now."""
    told = np.array([status], np.int64)
    with suppress(Overdue, RankLost):
        transport.wait(transport.comm.Ibcast(told, 0), "the spare ranks")


def _stand_by(transport: Transport) -> int:
    """Wait for the end of the training; return its status. Raises RankLost if a rank is lost, and BadInput if that
    ended the training on all ranks."""
    status = np.zeros(1, np.int64)
    try:
        over = transport.comm.Ibcast(status, 0)
        transport.until(over.Test, "the end of the training", [0], nap=NAP)
    except RankLost:
        raise RankLost(held=SPARE) from None
    except Overdue as error:
        if error.silent:
            raise RankLost(error.silent, SPARE) from error
        raise
    if status[0] == REFUSED:
        raise BadInput.known("", spoken_here=False)
    return int(status[0])


def _training(transport: Transport, options: TrainOptions, run: RunOptions) -> int:
    """How many of these ranks train. Raises BadInput naming run.spares."""
    if not isinstance(transport.comm, EnduringCommunicator):  # no spares, or a single rank: require_keys refuses others
        return transport.size
    if options.ranks:  # as many as before ranks were lost
        return min(options.ranks, transport.size)
    if run.spares >= transport.size:
        raise BadInput(f"run.spares = {run.spares}: none of {some(transport.size, 'rank')} is left to train")
    return transport.size - run.spares
