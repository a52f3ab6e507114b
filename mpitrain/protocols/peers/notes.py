"""What peers tell each other beside their deltas, as JSON: small, rare, and checked when read."""

from typing import Literal

import msgspec

from mpitrain.errors import WireError

#: Why a rank comes to a meeting: it has no work left, it was told to stop, the master wants to save, others called.
Reason = Literal["done", "stop", "save", "called"]


class Report(msgspec.Struct, frozen=True, tag="report"):
    """What a rank has done since the start of the program, and how its emission stands."""

    samples: int = 0
    loss: float = 0.0  # summed over samples
    minibatches: int = 0
    messages: int = 0
    elements: int = 0
    nbytes: int = 0  # of messages, each counted once, however many peers it goes to
    threshold: float = 0.0
    residual: float | None = None  # its norm, 5 s old at most; None before it was measured


class Reached(msgspec.Struct, frozen=True, tag="reached"):
    """The master has come to the round at `place`: ranks whose stage begins there may train."""

    place: int


class Meeting(msgspec.Struct, frozen=True, tag="meeting"):
    """The sender waits at meeting `number`. Unless it is merely done, all shall come once their minibatch is done."""

    number: int
    reason: Reason


class Standing(msgspec.Struct, frozen=True):
    """Where a rank stands at a meeting, all messages applied: its next round, its replica, whether it was stopped."""

    reason: Reason
    place: int
    replica: str
    report: Report


Note = Report | Reached | Meeting


def pack(note: Note | Standing) -> bytes:
    """The note as bytes."""
    return msgspec.json.encode(note)


def unpack(message: bytes, sender: int) -> Note:
    """The note of a message. Raises WireError naming the sender."""
    try:
        return msgspec.json.decode(message, type=Note)
    except msgspec.DecodeError as error:
        raise WireError(f"rank {sender} sent a note that cannot be read: {error}") from None
