"""What the ranks of a hybrid send each other within a minibatch, each kind as one nonblocking collective; calling MPI
for them while the rank computes, and how much of their time that hid.

MPI moves a message mostly when it is called. Of the two remedies, a call every few milliseconds of computing and a
thread that calls, the first is used: benchmarks/hybrid/progress.py measures both.

Floats received a rank and minibatch, for K ranks of b examples, A activations, layers of N units and W convolution
weights, in equal slices: (K−1)bA activations and as many of their gradients, (K−1)bN units and as many of theirs for
each boundary between fully connected layers, 2(K−1)/K·W convolution gradients.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpitrain.flat import Array, share
from mpitrain.models.workspace import Workspace
from mpitrain.mpi import Transport
from mpitrain.sampling.rounds import FullyConnectedRound

ACTIVATIONS, ACTIVATION_GRADIENTS = "activations", "activation_gradients"
UNITS, UNIT_GRADIENTS = "unit_activations", "unit_gradients"
CONV_GRADIENTS = "conv_gradients"
OTHER = "other"  # small ones: targets, losses, sums of squares
KINDS = (ACTIVATIONS, ACTIVATION_GRADIENTS, UNITS, UNIT_GRADIENTS, CONV_GRADIENTS, OTHER)


@dataclass(eq=False)
class Transfer:
    """One operation. Its buffers must stay untouched until it is done."""

    request: Any
    kind: str
    done: bool = False


class Transfers:
    """The operations of one rank, their bytes and their time.

    `received`: payload bytes by kind. `seconds`: time in which any operation was under way; `waited`: time in which the
    rank did nothing but wait for one. Their difference was hidden behind computing. An operation that ended between two
    calls of `progress` counts as under way until the second. Without `overlap` every operation is waited for at once.
    """

    def __init__(self, transport: Transport, overlap: bool = True) -> None:
        self.transport, self._clock, self._overlap = transport, transport.clock, overlap
        self._open: list[Transfer] = []
        self.received: Counter[str] = Counter()
        self.seconds = self.waited = 0.0
        self._since = 0.0

    def start(self, kind: str, start: Callable[..., Any], *arguments: Any) -> Transfer:
        """Start an operation of the transport's. All ranks start them in the same order. One rank has nothing to do."""
        if self.transport.size == 1:
            return Transfer(None, kind, done=True)
        if not self._open:
            self._since = self._clock()
        before = self.transport.traffic.bytes_received
        transfer = Transfer(start(*arguments), kind)
        self.received[kind] += self.transport.traffic.bytes_received - before
        self._open.append(transfer)
        if not self._overlap:
            self.wait(transfer)
        return transfer

    def progress(self) -> None:
        """Let the operations in progress advance."""
        for transfer in tuple(self._open):
            if transfer.request.Test():
                self._close(transfer)

    @property
    def push(self) -> Callable[[], None] | None:
        """`progress`, or None if nothing is in progress, so that a matrix product need not be cut into blocks."""
        return self.progress if self._open else None

    def wait(self, transfer: Transfer | None) -> None:
        """Wait for an operation, if there is one. Raises Overdue."""
        if transfer is None or transfer.done:
            return
        began = self._clock()
        what = "targets or losses" if transfer.kind == OTHER else transfer.kind.replace("_", " ")
        self.transport.wait(transfer.request, f"the other ranks' {what}")
        self.waited += self._clock() - began
        self._close(transfer)

    def _close(self, transfer: Transfer) -> None:
        transfer.done = True
        self._open.remove(transfer)
        if not self._open:
            self.seconds += self._clock() - self._since


class ActivationExchange:
    """The messages of the fully connected layers. With one rank there are none, and all arrays are its own."""

    def __init__(self, transfers: Transfers, width: int, workspace: Workspace) -> None:
        self.transfers, self._transport = transfers, transfers.transport
        self._part, self._parts = self._transport.rank, self._transport.size
        self._width, self._workspace = width, workspace

    def start_targets(self, own: Array, count: int) -> tuple[Transfer, Array]:
        """Start gathering the targets [count] of the whole minibatch from every rank's own; returns them, too."""
        out = own if self._parts == 1 else self._workspace.array("targets", (count,), own.dtype)
        return self.transfers.start(OTHER, self._transport.start_gather, own, out, counts_of(count, self._parts)), out

    def start_activations(self, each: FullyConnectedRound, own: Array, first: int) -> tuple[Transfer, Array]:
        """Start gathering a round's activations [n, width]; returns them, too. `own` are this rank's, from
        example `first` on.

        There are two buffers in turn: a round's activations stay until the round after the next one starts.
        """
        mine = self.rows_of(each, own, first)
        if len(each.pieces) == 1 and len(mine):
            out = mine
        else:
            out = self._workspace.array(f"inputs{each.number % 2}", (each.examples, self._width), own.dtype)
        if len(each.pieces) == 1:
            root = each.pieces[0].rank
            return self.transfers.start(ACTIVATIONS, self._transport.start_broadcast, out, root), out
        start = self._transport.start_gather
        return self.transfers.start(ACTIVATIONS, start, mine, out, self._counts(each)), out

    def start_gradients(self, each: FullyConnectedRound, terms: Array, own: Array, first: int) -> Transfer:
        """Sum the ranks' terms [n, width] of the round's activation gradients; each rank gets those of its examples."""
        mine = self.rows_of(each, own, first)
        if self._parts == 1:
            np.copyto(mine, terms)
        if len(each.pieces) == 1:
            start, root = self._transport.start_reduce, each.pieces[0].rank
            return self.transfers.start(ACTIVATION_GRADIENTS, start, root, terms, mine if len(mine) else None)
        start_all = self._transport.start_reduce_scatter
        return self.transfers.start(ACTIVATION_GRADIENTS, start_all, terms, mine, self._counts(each))

    def gather_units(self, units: Array) -> None:
        """Fill in the other ranks' rows of `units` [units, n]."""
        start, counts = self._transport.start_gather, self._unit_counts(units)
        self.transfers.wait(self.transfers.start(UNITS, start, None, units, counts))

    def start_unit_gradients(self, terms: Array, own: Array) -> Transfer:
        """Sum the ranks' terms [units, n]; `own` [own units, n] gets the own units' rows of the sum."""
        start = self._transport.start_reduce_scatter
        return self.transfers.start(UNIT_GRADIENTS, start, terms, own, self._unit_counts(terms))

    def reduce(self, array: Array, how: str) -> None:
        """Replace a small array by its maximum or sum over the ranks."""
        start = self._transport.start_maximum if how == "max" else self._transport.start_sum
        self.transfers.wait(self.transfers.start(OTHER, start, array))

    def terms(self, each: FullyConnectedRound, dtype: np.dtype) -> Array:
        """A buffer [n, width] for a round's gradients; there are two in turn."""
        return self._workspace.array(f"terms{each.number % 2}", (each.examples, self._width), dtype)

    def rows_of(self, each: FullyConnectedRound, own: Array, first: int) -> Array:
        """The rows of a round among this rank's rows `own`, whose first is that of example `first`."""
        piece = each.piece_of(self._part)
        return own[piece.start - first : piece.stop - first] if piece else own[:0]

    def _counts(self, each: FullyConnectedRound) -> list[int]:
        pieces = {piece.rank: piece.examples for piece in each.pieces}
        return [pieces.get(rank, 0) * self._width for rank in range(self._parts)]

    def _unit_counts(self, units: Array) -> list[int]:
        return [count * units.shape[1] for count in counts_of(len(units), self._parts)]


class Synchroniser:
    """Sums gradients over the ranks, part by part in the order of `start`, while other parts are computed.

    Each rank sums 1/K of a part, then hands its sum to all (Krizhevsky 2014, §4.1). A rank starts the second step when
    it notices that the first has ended, at a different time on each rank; a duplicate transport keeps these in order.
    """

    def __init__(self, transfers: Transfers, gradient: Array, pieces: Sequence[slice]) -> None:
        self._transfers, self._gradient, transport = transfers, gradient, transfers.transport
        self._transport, self._duplicate = transport, transport.duplicate()
        self._summing: deque[tuple[Transfer, slice]] = deque()
        self._handing: deque[tuple[Transfer, slice]] = deque()
        self._own = {piece.start: np.empty_like(gradient[: self._counts(piece)[transport.rank]]) for piece in pieces}

    def start(self, part: slice) -> None:
        """Start summing a part, of which this rank's term is final."""
        start, own = self._transport.start_reduce_scatter, self._own[part.start]
        transfer = self._transfers.start(CONV_GRADIENTS, start, self._gradient[part], own, self._counts(part))
        self._summing.append((transfer, part))
        self.advance()

    def advance(self, done: Callable[[slice], None] | None = None) -> None:
        """Start the second step of parts whose first has ended; call `done` with parts that are summed everywhere."""
        while self._summing and self._summing[0][0].done:
            self._hand_out(self._summing.popleft()[1])
        while done and self._handing and self._handing[0][0].done:
            done(self._handing.popleft()[1])

    def finish(self, done: Callable[[slice], None]) -> None:
        """Wait until all parts are summed, and call `done` with each."""
        while self._summing:
            self._transfers.wait(self._summing[0][0])
            self.advance()
        while self._handing:
            self._transfers.wait(self._handing[0][0])
            self.advance(done)

    def _hand_out(self, part: slice) -> None:
        start, own = self._duplicate.start_gather, self._own[part.start]
        transfer = self._transfers.start(CONV_GRADIENTS, start, own, self._gradient[part], self._counts(part))
        self._handing.append((transfer, part))

    def _counts(self, part: slice) -> list[int]:
        return counts_of(part.stop - part.start, self._transport.size)


def counts_of(size: int, parts: int) -> list[int]:
    """How many of `size` elements belong to each of `parts` parts."""
    shares = (share(size, part, parts) for part in range(parts))
    return [each.stop - each.start for each in shares]
