"""The start of a training: first MPI, then the modules of a training, which take seconds or even minutes to load."""

import argparse
import gc
from collections.abc import Callable
from typing import Any

from mpitrain.api.options import TrainOptions, from_arguments
from mpitrain.errors import BadInput, Overdue, RankLost, say
from mpitrain.mpi import Transport, abort_on_exception
from mpitrain.mpi.agreement import agreed, ending_together
from mpitrain.mpi.enduring import tolerant, world
from mpitrain.mpi.process import PROCESS
from mpitrain.signals import Stop
from mpitrain.start import first_deadline


def train(options: argparse.Namespace) -> int:
    """Train and return the exit status. Collective."""
    abort_on_exception()
    stop = Stop()
    stop.install()
    try:
        transport = Transport(world(), deadline=first_deadline(options.set))
    except RankLost:
        say("a rank died at the start; the job ends")
        PROCESS.abort(1)
        return 1
    status = outlasting(transport, lambda: from_arguments(options), stop)
    if tolerant():
        PROCESS.end_without_finalizing(status)
    return status


def outlasting(transport: Transport, given: Callable[[], TrainOptions], stop: Stop) -> int:
    """Train with the options that `given()` returns, going on without lost ranks; returns the status. Collective."""
    told: TrainOptions | None = None
    loss: Any = None  # LostRanks once ranks are lost; not its type here, since its module is loaded with the training

    def load_and_train() -> int:
        nonlocal told, loss
        transport.watch()
        with transport.working():  # loading takes seconds, on some file systems minutes
            from mpitrain.api.train import configured
        resumes = loss is not None
        try:
            if loss is not None:
                found, loss = loss.resumed(transport, told), None
                gc.collect()  # frees the vectors and samples from before the loss
                if isinstance(found, int):
                    return found
                told = found
            told = told or agreed(transport, given, "the command line")
            return configured(transport, told, stop)
        except Overdue as error:
            if resumes and error.silent:  # a rank that is silent while the others recover is lost, too
                raise RankLost(error.silent) from error
            raise

    while True:
        try:
            return ending_together(transport, load_and_train)
        except RankLost as error:
            from mpitrain.api.going_on import LostRanks

            loss = loss or LostRanks(transport, error, told)
            transport = loss.leave(transport, error.silent)


def refuse(fault: str) -> int:
    """Report a fault of the command line once, on any number of ranks."""

    def fail() -> int:
        raise BadInput(fault)

    transport = Transport()
    return ending_together(transport, lambda: agreed(transport, fail, "the command"))
