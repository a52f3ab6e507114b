"""The start of a training: MPI first, then all that a training loads, which takes its time."""

import argparse
import gc
import sys
from typing import Any

from mpitrain.api.options import TrainOptions, from_arguments
from mpitrain.errors import BadInput, RankLost
from mpitrain.mpi import Transport, abort_on_exception
from mpitrain.mpi.agreement import agreed, ending_together
from mpitrain.mpi.enduring import tolerant, world
from mpitrain.mpi.process import PROCESS
from mpitrain.signals import STOPPED, Stop
from mpitrain.start import first_deadline


def train(options: argparse.Namespace) -> int:
    """Train; the exit status. Collective."""
    abort_on_exception()
    stop = Stop()
    stop.install()
    try:
        transport = Transport(world(), deadline=first_deadline(options.set))
    except RankLost:
        print("mpitrain: a rank died at the start; the job ends", file=sys.stderr, flush=True)
        PROCESS.abort(1)
        return 1
    told: TrainOptions | None = None
    loss: Any = None  # of ranks; what it is made of is loaded with the training

    def load_and_train() -> int:
        nonlocal told, loss
        transport.watch()
        with transport.working():  # loading takes seconds, on some file systems minutes
            from mpitrain.api.train import configured
        if loss is not None:
            told, loss = loss.resumed(transport, told), None
            gc.collect()  # the vectors and samples of before
            if told is None:
                return STOPPED
        told = told or agreed(transport, lambda: from_arguments(options), "the command line")
        return configured(transport, told, stop)

    while True:
        try:
            status = ending_together(transport, load_and_train)
            break
        except RankLost as error:
            from mpitrain.api.going_on import LostRanks

            loss = loss or LostRanks(transport, error, told)
            transport = loss.leave(transport)
    if tolerant():
        PROCESS.end_without_finalizing(status)
    return status


def refuse(fault: str) -> int:
    """Report a fault of the command line once, on any number of ranks."""

    def fail() -> int:
        raise BadInput(fault)

    transport = Transport()
    return ending_together(transport, lambda: agreed(transport, fail, "the command"))
