"""A centre Θ that a master rewrites: it merges whole gradients, one after another, and numbers the resulting Θ.

A worker claims by message, once; then each gradient that it pushes is answered by its next samples, once Θ includes it.
It reads Θ from the memory of `versioned.py`. A reader that fails three times, or cannot reach that memory, asks by
message, and the master sends a copy of Θ as it is between two updates.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from msgspec.structs import replace

from mpitrain.flat import Array
from mpitrain.protocols.messages import Assignment, Claim, FromWorker, Gradient, Piece, Pull, Pulled, Ready, Vectors
from mpitrain.protocols.server.by_messages import Snapshots
from mpitrain.protocols.server.interface import Centre, Claimed
from mpitrain.protocols.server.link import MasterLink
from mpitrain.protocols.server.updates import Updates
from mpitrain.protocols.server.versioned import Memory
from mpitrain.training.context import Session

POLLS_WHEN_IDLE = 50  # of a master for which there is nothing to do
TRIES = 3  # of a reader, before it asks by message
MOST_ASKED = 64  # pulls in a row that are asked for at once, before a reader tries again


class MergedCentre(Centre):
    """A worker's side."""

    def __init__(self, session: Session, memory: Memory, link: MasterLink) -> None:
        self._memory, self._link = memory, link
        self._vectors, self._transport = Vectors(session.transport, session.device), session.transport
        self._in_order = session.config.algorithm.in_order
        self.gradient, self.pieces = memory.gradient, [slice(0, memory.gradient.size)]
        self._claimed = False  # a pushed gradient is a claim, too
        self._at_least = 0  # the index of the first Θ that includes this worker's last gradient
        self._asked = self._to_ask = 0  # how many pulls in a row ask by message without a try, and how many still will

    def claim(self, has: int = 0) -> Claimed:
        if not self._claimed:
            self._link.tell(Claim())
        answer = self._link.answer(Assignment, "samples from the master")
        self.settle()
        self._claimed = self._link.granted = False  # a grant may have come too late
        self._at_least = answer.index
        return Claimed([answer.work] if answer.work else [], False, answer.learning_rate)

    def read(self, piece: slice, out: Array) -> int:
        """Copy Θ_j with j no older than this worker's own last update; returns j.

        If Θ has changed during each try, it will most likely do so at the next pull, too, and each try in vain has used
        the master's link, which others need. So the next pull asks by message at once; after another failure the next
        three, then seven, and so on to MOST_ASKED.
        """
        index = None
        if self._to_ask:
            self._to_ask -= 1
        elif (index := self._read(out)) is not None:
            self._asked = 0
        elif self._memory.over_network:
            self._asked = self._to_ask = min(2 * self._asked + 1, MOST_ASKED)
        if index is None:
            index = self._ask(out)
        if self._in_order:
            self._link.tell(Pulled())
        return index

    def _read(self, out: Array) -> int | None:
        for _ in range(TRIES):
            index = self._memory.read(out)
            if index is not None and index >= self._at_least:
                return index
        return None

    def _ask(self, out: Array) -> int:
        self._link.tell(Pull())
        told = self._link.answer(Piece, "Θ from the master")
        self._vectors.receive(self._link.master, told, out, "a copy of Θ")
        return told.index

    def push(self, piece: slice, d: Array, told: Gradient | None = None) -> None:
        assert told is not None
        self._claimed = True
        if self._memory.handed_over(self._transport.rank) is not None:  # `d` is `gradient`, which the master sees
            self._transport.traffic.bytes_sent += d.nbytes
            self._link.tell(told)
            return
        nbytes, checksum = self._vectors.sealed(d)
        self._link.tell(replace(told, nbytes=nbytes, checksum=checksum))
        self._vectors.send(self._link.master, d)

    def asked_for(self, ready: bool) -> bool:
        """Whether to hand the gradient over now. `ready`, once a round: tell the master that it can have it."""
        if ready:
            self._link.tell(Ready())
        self._link.poll()
        return self._link.granted or self._link.stopping

    def settle(self) -> None:
        self._vectors.settle("a gradient to leave", [self._link.master])

    def close(self) -> None:
        self._memory.close()


class MergingCentre(Centre):
    """The master's side. `memory.theta` is Θ itself, or if Θ is in GPU memory, a copy of it in host memory."""

    def __init__(self, session: Session, memory: Memory) -> None:
        self._memory, self._device, self._state = memory, session.device, session.state
        self._vectors = Vectors(session.transport, session.device)
        self._copies = Snapshots(session.transport, session.device)

    @property
    def polls_when_idle(self) -> int:  # type: ignore[override]
        return 0 if self._copies.asked else POLLS_WHEN_IDLE

    def put(self, theta: Array) -> None:
        """Θ ← θ; if both are in the same kind of memory, updates then change `memory.theta` itself."""
        with self._memory.writing(self._state.index):
            if type(self._memory.theta) is not type(theta):
                self._device.download(theta, self._memory.theta)
            else:
                np.copyto(self._memory.theta, theta)
                self._state.theta = self._memory.theta

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Context of an update of Θ; at its end, workers can read the new Θ."""
        with self._memory.writing(self._state.index + 1):
            yield
            if self._state.theta is not self._memory.theta:
                self._device.download(self._state.theta, self._memory.theta)

    def gradient(self, worker: int, told: Gradient) -> Array:
        """The gradient that a worker has announced, on the device. Raises WireError if it is damaged."""
        seen = self._memory.handed_over(worker)
        if seen is None:
            seen = self._memory.gradient
            self._vectors.receive(worker, told, seen, "a gradient")
        return self._device.to_device(seen)

    def handle(self, sender: int, message: FromWorker) -> bool:
        if isinstance(message, Pull):
            self._copies.asked.append(sender)
        return isinstance(message, Pull)

    def serve(self) -> bool:
        theta = self._state.theta if self._device.phantom else self._memory.theta
        return self._copies.send(theta, self._state.index)

    def close(self) -> None:
        """Wait until what was sent has left, and free the memory. Collective."""
        self._copies.finish()
        if self._state.theta is self._memory.theta:
            self._state.theta = self._memory.theta.copy()
        self._memory.close()


class OwnMerged(Centre):
    """A worker's side if the master is in the same process. `after_update` does what is due after every gradient."""

    def __init__(self, session: Session, after_update: Callable[[], object]) -> None:
        self._session, self._after_update = session, after_update
        self._updates, self._theta = Updates(session), session.state.theta
        self.pieces, self.gradient = [slice(0, self._theta.size)], np.empty_like(self._theta)

    def claim(self, has: int = 0) -> Claimed:
        schedule, queue = self._session.schedule, self._session.state.queue
        position = queue.position_at()
        settings, left = schedule.at(position), schedule.until_change(position)
        period = self._updates.options.period
        self._given = None if self._session.stop.flag else queue.next(settings.minibatch, period, left)
        learning_rate = self._session.state.rate(settings.learning_rate)
        self._updates.begins(self._session.members[0])
        return Claimed([self._given] if self._given else [], False, learning_rate)

    def read(self, piece: slice, out: Array) -> int:
        np.copyto(out, self._theta[piece])
        return self._session.state.index

    def push(self, piece: slice, d: Array, told: Gradient | None = None) -> None:
        assert told is not None and self._given is not None
        trained = 0
        if self._updates.accepts(d, told, self._session.members[0]):
            self._updates.apply(d, told, self._session.members[0])
            trained = told.work.count
            self._session.counters.trained(trained, told.loss)
        self._session.state.queue.give_back(self._given.rest(trained))
        self._after_update()

    def asked_for(self, ready: bool) -> bool:
        """Whether the gradient is to be handed over at once."""
        return self._session.stop.flag
