"""The program, with a last rank whose gradients take twice as long: after each it sleeps for as long as that took."""

import sys
import time
from typing import Any

from mpi4py import MPI

from mpitrain.__main__ import main
from mpitrain.training.gradients import Learner


def slowed(plain: Any) -> Any:
    """A method that takes twice as long."""

    def gradient(learner: Learner, *arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        loss = plain(learner, *arguments, **named)
        time.sleep(time.perf_counter() - began)
        return loss

    return gradient


if __name__ == "__main__":
    if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:  # `calibrate`, which has no learner, measures a whole one
        Learner.scaled_gradient = slowed(Learner.scaled_gradient)  # type: ignore[method-assign]
    sys.exit(main())
