"""The fixed-size note that ranks exchange about a vector: who, what, from which index, over which samples.

Little-endian, with a magic word and a checksum; a vector that follows in a message of its own is announced with its
length and checksum (`device.checksum`).
"""

import struct
from dataclasses import astuple, dataclass, fields
from enum import IntEnum

import xxhash

from mpitrain.errors import WireError
from mpitrain.sampling.assignments import Work

MAGIC = b"mpt1"
TO_SERVER, TO_WORKER, VECTOR = 1, 2, 3  # message tags
_FIELDS = struct.Struct("<iqqqqqqqqddddQ")
_CHECK = struct.Struct("<Q")
SIZE = len(MAGIC) + _FIELDS.size + _CHECK.size


class Kind(IntEnum):
    """What a note says."""

    HELLO = 1  # worker: give me work
    READY = 2  # worker: n minibatches done, take my gradient when you are free
    GRANT = 3  # server: hand it over
    GRADIENT = 4  # worker: here it is
    WORK = 5  # server: next samples, at this index
    WAIT = 6  # server: not your stage yet
    STOP = 7  # server: the end
    PULL = 8  # worker: send me Θ
    SNAPSHOT = 9  # server: here it is, or a piece of it
    PULLED = 10  # worker: I have Θ
    SAVE = 11  # master: copy your piece of a checkpoint
    REST = 12  # worker: these samples I was given and have not used; COPIED or DONE ends the list
    COPIED = 13  # worker: it is copied, so large, and I wait
    RESUME = 14  # master: go on, and write it under this name
    DONE = 15  # worker: I shall train no more
    REPORT = 16  # worker: so much have I trained since the last report
    TOKEN = 17  # worker to worker: your turn
    CLAIM = 18  # worker: give me samples, and the centre with them
    PUSH = 19  # worker: add the piece that follows to the centre
    ADDED = 20  # master: all pieces are added


@dataclass(frozen=True)
class Note:
    """One note. `index` is the server's or the worker's; `work` fields name samples; sums are over minibatches."""

    kind: int
    index: int = 0
    epoch: int = 0
    start: int = 0
    count: int = 0
    minibatch: int = 0
    minibatches: int = 0
    stopping: int = 0
    nbytes: int = 0
    learning_rate: float = 0.0
    loss: float = 0.0  # summed over samples
    zeros: float = 0.0  # mean share of exact zeros in the minibatches' gradients
    traffic: float = 0.0  # bytes that the worker has sent and received so far
    checksum: int = 0

    @property
    def work(self) -> Work:
        """The samples that the note names."""
        return Work(self.epoch, self.start, self.count, self.minibatch)

    def pack(self) -> bytes:
        """The note as bytes."""
        body = MAGIC + _FIELDS.pack(*astuple(self))
        return body + _CHECK.pack(xxhash.xxh3_64_intdigest(body))


assert len(fields(Note)) == len(_FIELDS.unpack(bytes(_FIELDS.size)))


def unpack(message: bytes, sender: int) -> Note:
    """The note of a message. Raises WireError naming the sender."""
    if len(message) != SIZE:
        raise WireError(f"rank {sender} sent a note of {len(message)} bytes, expected {SIZE}")
    body, check = message[: -_CHECK.size], message[-_CHECK.size :]
    if body[: len(MAGIC)] != MAGIC or _CHECK.unpack(check)[0] != xxhash.xxh3_64_intdigest(body):
        raise WireError(f"rank {sender} sent a corrupt note")
    return Note(*_FIELDS.unpack(body[len(MAGIC) :]))
