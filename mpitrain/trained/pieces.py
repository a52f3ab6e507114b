"""Ranks compute pieces of rows in turn, and rank 0 receives them in order.

Piece k is computed by rank k mod size. A rank computes its next piece while the previous one waits to be received, but
no more, so that memory is bounded. Only rank 0 needs access to the output file.
"""

from collections.abc import Iterator

import numpy as np

from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.mpi import Transport
from mpitrain.mpi.tags import Tag
from mpitrain.trained.posteriors import Compute

HEAD = 1024  # bytes before the rows: empty, or an error message


def pieces(samples: int, size: int) -> list[slice]:
    """Divide `samples` into pieces of `size`."""
    return [slice(start, min(start + size, samples)) for start in range(0, samples, size)]


def lead(transport: Transport, parts: list[slice], classes: int, compute: Compute) -> Iterator[Array]:
    """Yield all rows in order. Rank 0 calls this. Raises BadInput for a fault on another rank."""
    longest = max(part.stop - part.start for part in parts)
    room = np.empty(HEAD + 4 * longest * classes, np.uint8)
    for number, part in enumerate(parts):
        rank = number % transport.size
        if rank == 0:
            yield compute(part)
            continue
        message = room[: HEAD + 4 * (part.stop - part.start) * classes]
        transport.receive_into(rank, Tag.ROWS, message, f"the predictions of rank {rank}")
        if fault := bytes(message[:HEAD]).rstrip(b"\0"):
            raise BadInput(fault.decode(errors="replace"))
        yield message[HEAD:].view(np.float32).reshape(-1, classes)


def follow(transport: Transport, parts: list[slice], classes: int, compute: Compute) -> None:
    """Compute this rank's pieces and send them. The other ranks call this. A fault is sent to rank 0, which ends the
    job."""
    own = parts[transport.rank :: transport.size]
    longest = max((part.stop - part.start for part in own), default=0)
    rooms = [np.empty(HEAD + 4 * longest * classes, np.uint8) for _ in range(2)]
    before = None
    for number, part in enumerate(own):
        message, fault = rooms[number % 2][: HEAD + 4 * (part.stop - part.start) * classes], b""
        try:
            message[HEAD:].view(np.float32).reshape(-1, classes)[:] = compute(part)
        except BadInput as error:
            fault = str(error).encode()[:HEAD]
        message[:HEAD] = np.frombuffer(fault.ljust(HEAD, b"\0"), np.uint8)
        if before is not None:
            transport.wait(before, "the first rank to take predictions")
        before = transport.send_matched(0, Tag.ROWS, message)
        if fault:
            break
    if before is not None:
        transport.wait(before, "the first rank to take predictions")
