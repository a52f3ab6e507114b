"""The user's code on all ranks, as the first rank has read it."""

from collections.abc import Callable

import msgspec

from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import agreed
from mpitrain.training.user_code import Code


def shared(transport: Transport, choose: Callable[[], dict[str, Code]]) -> dict[str, Code]:
    """On all ranks, what `choose` returns on the first, which reads the files and tells the user. Collective."""
    what = "the network's code"

    def first() -> bytes:
        return msgspec.json.encode(choose()) if transport.rank == 0 else b""

    chosen = transport.broadcast(agreed(transport, first, what), what)
    return msgspec.json.decode(chosen, type=dict[str, Code])
