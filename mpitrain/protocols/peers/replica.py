"""A peer's copy of the weights; it records what was applied from whom, and checks that it is exactly the sum of that.

For each sender a sum over its deltas is kept (see `compression.replica`). A message ends with the sender's own sum, so
that both agree after every message on what was applied; and the replica must always be its start plus all sums.
"""

import struct
from typing import Any

from xxhash import xxh3_64

from mpitrain.compression import replica
from mpitrain.compression.message import CorruptMessage, WireForm
from mpitrain.compression.residual import Entries
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.errors import TrainingFailed, WireError
from mpitrain.flat import Array, on_host

#: What follows a message: the sender's sum including it; how many turns the sender has done by then, some perhaps
#: without a message; whether it calls for a meeting.
TRAILER = struct.Struct("<QII")
MODULUS = 1 << 64


class Replica:
    """Weights and their counts, to which messages of `members` are applied; `rank` is this rank."""

    def __init__(
        self, weights: Array, counts: Array, members: list[int], rank: int, wire: WireForm, device: Cpu = CPU
    ) -> None:
        self.wire, self.rank, self.counts, self.weights = wire, rank, counts, weights
        self.sums, self.sequences = dict.fromkeys(members, 0), dict.fromkeys(members, 0)
        self.turns = dict.fromkeys(members, 0)  # of each other member, by its last message
        self.applied = 0
        self._apply_words = device.apply_words
        self._phantom, self._start = device.phantom, 0
        self._start, wrong = self._digest()
        if wrong >= 0:
            raise TrainingFailed(f"rank {rank}: weight {wrong} is no multiple of the unit 2^-26")

    def write(self, entries: Entries, step: int, threshold: float, calls: bool, out: Array, turns: int = 0) -> Array:
        """Write the next message of this rank with its trailer to `out`; returns the part of `out` to send. Call
        `apply_own` first. `turns`: how many turns this rank has done."""
        number = self.sequences[self.rank] - 1
        message = self.wire.encode(entries, self.rank, number, step, threshold, out)
        TRAILER.pack_into(out, message.size, self.sums[self.rank], turns, calls)
        return out[: message.size + TRAILER.size]

    def apply_own(self, entries: Entries, step: int) -> None:
        """Apply what this rank emits. Raises TrainingFailed when a weight leaves its range."""
        self._apply(entries, step, self.rank)

    def read(self, message: Array, sender: int) -> bool:
        """Check and apply a peer's message with its trailer; returns whether the sender calls for a meeting.

        Raises WireError naming the sender.
        """
        body = message[: -TRAILER.size] if message.size >= TRAILER.size else message[:0]
        try:
            header, entries = self.wire.decode(body, sender)
        except CorruptMessage as error:
            raise WireError(f"rank {self.rank}: {error}") from error
        if header.sequence != self.sequences[sender]:
            raise WireError(
                f"rank {self.rank}: message {header.sequence} from rank {sender}, expected {self.sequences[sender]}: "
                f"{'one came twice' if header.sequence < self.sequences[sender] else 'some are lost'}"
            )
        self._apply(entries, header.step, sender)
        total, turns, calls = TRAILER.unpack_from(message, body.size)
        if total != self.sums[sender]:
            raise WireError(
                f"rank {self.rank} has applied other deltas of rank {sender} than that rank itself, "
                f"up to its message {header.sequence}"
            )
        self.turns[sender] = turns
        return bool(calls)

    def check(self) -> None:
        """Raise TrainingFailed, naming this rank, unless the replica is its start plus what was applied."""
        total, wrong = self._digest()
        if wrong >= 0:
            raise TrainingFailed(f"the replica of rank {self.rank} has diverged: weight {wrong} is not its count")
        if total != (self._start + sum(self.sums.values())) % MODULUS:
            raise TrainingFailed(f"the replica of rank {self.rank} has diverged from what was applied to it")

    def hash(self) -> str:
        """A hash of counts and weights, to compare replicas at a meeting; a phantom's is of the sums instead."""
        if self._phantom:
            return str(self._digest()[0])
        hasher: Any = xxh3_64(memoryview(on_host(self.counts)).cast("B"))
        hasher.update(memoryview(on_host(self.weights)).cast("B"))
        return str(hasher.hexdigest())

    def _digest(self) -> tuple[int, int]:
        """`replica.digest`; for a phantom, which has no values, what it should be."""
        if self._phantom:
            return (self._start + sum(self.sums.values())) % MODULUS, -1
        return replica.digest(on_host(self.counts), on_host(self.weights))

    def _apply(self, entries: Entries, step: int, sender: int) -> None:
        self._apply_words(entries.words, step, self.counts, self.weights, entries.levels)
        change = replica.digest_change(entries.words, step, entries.levels)
        self.sums[sender] = (self.sums[sender] + change) % MODULUS
        self.sequences[sender] += 1
        self.applied += 1


def odd_ones(hashes: list[str]) -> list[int]:
    """The indices of the hashes that differ from the commonest."""
    commonest = max(hashes, key=hashes.count)
    return [number for number, each in enumerate(hashes) if each != commonest]
