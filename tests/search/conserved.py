"""What must add up in a training, whatever comes when: nothing that a rank gives is lost or counted twice.

- A centre that only adds: x̃ = x̃₀ + all that the workers' rules gave it, at each checkpoint and at the end.
- A server: each gradient that a worker has summed is merged once, as it was, or refused.
- Peers: what a peer has sent and what its residual holds are all its gradients; each replica is the initial weights
  less all that all peers have sent.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import xxhash

from mpitrain.algorithms.admm import AdmmWorker
from mpitrain.algorithms.downpour import DownpourWorker
from mpitrain.algorithms.elastic import ElasticWorker
from mpitrain.algorithms.roles import AveragingRule, WorkerRule
from mpitrain.checkpoint.state import State
from mpitrain.checkpoint.writer import Saver
from mpitrain.compression.residual import INDEX, SIGN, Entries
from mpitrain.compression.thresholds import unit_quantum
from mpitrain.flat import Array
from mpitrain.protocols.messages import Gradient
from mpitrain.protocols.peers.exchange import DeltaExchange
from mpitrain.protocols.peers.peer import Peer
from mpitrain.protocols.peers.rounds import Steps
from mpitrain.protocols.server.adding_master import AddingMaster
from mpitrain.protocols.server.interface import Claimed
from mpitrain.protocols.server.merging import MergingWorker
from mpitrain.protocols.server.updates import Updates
from mpitrain.sampling.queue import Work

#: How far sums may be apart by rounding, by the size of a number; a lost delta is far more.
ROUNDING = {8: 1e-9, 4: 1e-3}


@dataclass
class Book:
    """Of one peer: what its residual and its counts were at first, and its gradients and entries since."""

    peer: Peer
    residual: Array
    counts: Array
    gradients: Array
    sent: Array
    steps: Array


@dataclass
class Ledger:
    """What the ranks of one session have given. `wrong` says what did not add up while it ran."""

    centre: Array | None = None  # x̃₀
    given: dict[int, Array] = field(default_factory=dict)  # by each worker's rule
    state: State | None = None  # of the master, whose θ is x̃ at a checkpoint and at the end
    gradients: Counter[tuple[int, int]] = field(default_factory=Counter)  # on their way: rank, bits
    books: list[Book] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def moved(self, rule: WorkerRule, piece: slice, d: Array) -> None:
        """A rule gives d to the centre."""
        if self.centre is not None:
            self.given.setdefault(id(rule), np.zeros(self.centre.size))[piece] += d

    def check_centre(self, when: str) -> None:
        """Whether x̃ is what it was and what was given to it."""
        if self.centre is None or self.state is None:
            return
        theta, total = self.state.theta, self.centre + sum(self.given.values())
        if not _alike(theta, total, theta.itemsize):
            self.wrong.append(f"{when} the centre is not the sum of what it was given")

    def at_the_end(self) -> list[str]:
        """What does not add up once no rank died."""
        self.check_centre("at the end")
        if self.gradients.total():
            self.wrong.append(f"{self.gradients.total()} gradients were not merged")
        moves: Any = sum(book.steps for book in self.books)
        for number, book in enumerate(self.books):
            state, options = book.peer.state, book.peer.options
            changed = options.clip or options.momentum or options.error_decay < 1
            if not np.array_equal(state.beside["counts"], book.counts + moves):
                self.wrong.append(f"replica {number} is not the initial weights and all peers' entries")
            held = book.residual + book.gradients - book.sent
            if not changed and not _alike(state.local["residual"], held, state.theta.itemsize):
                self.wrong.append(f"peer {number}'s residual is not its gradients less its entries")
        return self.wrong


def _alike(found: Array, expected: Array, itemsize: int) -> bool:
    scale = max(float(np.abs(expected).max()), 1e-3)
    return bool(np.abs(found - expected).max() <= ROUNDING[itemsize] * scale)


@contextlib.contextmanager
def keeping(ledger: Ledger) -> Iterator[None]:
    """Enter in the ledger what ranks give each other."""
    with contextlib.ExitStack() as stack:
        for kind, name, noted in (*_of_centres(ledger), *_of_servers(ledger), *_of_peers(ledger)):
            stack.enter_context(mock.patch.object(kind, name, noted))
        yield


def _of_centres(ledger: Ledger) -> Iterator[tuple[Any, str, Any]]:
    def giving(plain: Any) -> Any:
        def gives(rule: WorkerRule, piece: slice, *rest: Any) -> Array | None:
            d = plain(rule, piece, *rest)
            if d is not None and not isinstance(rule, AveragingRule):
                ledger.moved(rule, piece, d)
            return d  # type: ignore[no-any-return]

        return gives

    for kind in (ElasticWorker, DownpourWorker, AdmmWorker):
        yield kind, "exchange", giving(kind.exchange)
    for kind in (DownpourWorker, AdmmWorker):
        yield kind, "pending", giving(kind.pending)
    begun, copied = AddingMaster.__init__, Saver.copy_state

    def begins(master: AddingMaster, session: Any, *rest: Any) -> None:
        ledger.centre, ledger.state = session.state.theta.astype(np.float64), session.state
        begun(master, session, *rest)

    def copies(saver: Saver, state: State, outstanding: list[Work]) -> Any:
        if state is ledger.state:
            ledger.check_centre(f"in the checkpoint after {state.trained} samples")
        return copied(saver, state, outstanding)

    yield AddingMaster, "__init__", begins
    yield Saver, "copy_state", copies


def _of_servers(ledger: Ledger) -> Iterator[tuple[Any, str, Any]]:
    summed, taken = MergingWorker.round, Updates.accepts

    def sums(worker: MergingWorker, claimed: Claimed) -> Gradient:
        told = summed(worker, claimed)
        rank = worker.transport.rank
        ledger.gradients[rank, xxhash.xxh3_64_intdigest(worker.centre.gradient)] += 1
        return told

    def takes(updates: Updates, gradient: Array, told: Gradient, worker: int) -> bool:
        what = worker, xxhash.xxh3_64_intdigest(gradient)
        if not ledger.gradients[what]:
            ledger.wrong.append(f"a gradient that rank {worker} has not sent is merged at update {told.index}")
        ledger.gradients[what] -= 1
        return taken(updates, gradient, told, worker)

    yield MergingWorker, "round", sums
    yield Updates, "accepts", takes


def _of_peers(ledger: Ledger) -> Iterator[tuple[Any, str, Any]]:
    begun, computed, took, sent = Peer.__init__, Peer.compute, Peer._gradient_at, DeltaExchange.send
    books, turns = dict[int, Book](), dict[int, list[Array]]()

    def begins(peer: Peer, session: Any) -> None:
        begun(peer, session)
        residual = peer.state.local["residual"].astype(np.float64)
        book = Book(peer, residual, peer.state.beside["counts"].astype(np.int64), *(0 * residual for _ in range(3)))
        books[id(peer.exchange)] = book
        ledger.books.append(book)

    def computes(peer: Peer, steps: Steps, workers: int, emit: bool) -> Entries:
        turns[id(peer)] = []
        entries = computed(peer, steps, workers, emit)
        rates = [peer._rate(settings) for _, settings in steps]  # sums are in gradients of the last one's
        for rate, (work, _), gradient in zip(rates, steps, turns[id(peer)], strict=True):
            books[id(peer.exchange)].gradients += gradient * (work.count * rate / rates[-1])
        return entries

    def takes_gradient(peer: Peer, *where: Any) -> None:
        took(peer, *where)
        turns[id(peer)].append(peer._gradient.astype(np.float64))

    def sends(exchange: DeltaExchange, entries: Entries, step: int, threshold: float, *rest: Any) -> int:
        book = books[id(exchange)]
        at, sign = (entries.words & INDEX).astype(np.int64), np.where(entries.words & SIGN, -1.0, 1.0)
        levels = sign * (entries.levels if entries.levels.size else 1)
        unit = threshold
        if book.peer.options.bits == 32 and entries.words.size and not book.peer.options.top_k:
            unit = unit_quantum(book.peer.compressor._rate)
        book.sent[at] += levels * unit
        book.steps[at] -= levels * step
        return sent(exchange, entries, step, threshold, *rest)

    yield Peer, "__init__", begins
    yield Peer, "compute", computes
    yield Peer, "_gradient_at", takes_gradient
    yield DeltaExchange, "send", sends
