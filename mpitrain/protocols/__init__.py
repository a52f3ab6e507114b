"""Who sends what to whom, when. Transport, clock and members are given; neither mpi4py nor time is imported here."""

from collections.abc import Callable

from mpitrain.protocols import hybrid, model_averaging, peers, server, synchronous
from mpitrain.training.context import Session

#: The protocol that `Algorithm.protocol` names.
PROTOCOLS: dict[str, Callable[[Session], None]] = {
    "synchronous": synchronous.run,
    "server": server.run,
    "hybrid": hybrid.run,
    "peers": peers.run,
    "model-averaging": model_averaging.run,
}
#: What a protocol finds out before the training's clock begins. Collective, as the protocol is.
PREPARATIONS: dict[str, Callable[[Session], None]] = {"server": server.prepare}
