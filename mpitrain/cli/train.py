"""The start of a training: MPI first, then all that a training loads, which takes its time."""

import argparse

from mpitrain.api.options import from_arguments
from mpitrain.errors import BadInput
from mpitrain.mpi import Transport, abort_on_exception
from mpitrain.mpi.agreement import agreed, ending_together
from mpitrain.signals import Stop
from mpitrain.start import first_deadline


def train(options: argparse.Namespace) -> int:
    """Train; the exit status. Collective."""
    abort_on_exception()
    stop = Stop()
    stop.install()
    transport = Transport(deadline=first_deadline(options.set))

    def load_and_train() -> int:
        transport.watch()
        with transport.working():  # loading takes seconds, on some file systems minutes
            from mpitrain.api.train import configured
        told = agreed(transport, lambda: from_arguments(options), "the command line")
        return configured(transport, told, stop)

    return ending_together(transport, load_and_train)


def refuse(fault: str) -> int:
    """Report a fault of the command line once, on any number of ranks."""

    def fail() -> int:
        raise BadInput(fault)

    transport = Transport()
    return ending_together(transport, lambda: agreed(transport, fail, "the command"))
