"""A centre Θ that a master rewrites: it merges whole gradients, one after another, and numbers what it makes of them.

A worker claims by message, once; then each gradient that it pushes is answered by its next samples, once Θ includes it.
It reads Θ where `versioned.py` shows it. A reader that fails three times, or has nowhere to read, asks by message, and
the master sends a copy of Θ as it is between two updates.
"""

from typing import Any

import numpy as np
from msgspec.structs import replace

from mpitrain.flat import Array
from mpitrain.mpi.tags import Tag
from mpitrain.protocols.messages import (
    Assignment,
    Claim,
    FromWorker,
    Gradient,
    Piece,
    Pull,
    Pulled,
    Ready,
)
from mpitrain.protocols.server.by_messages import Snapshots
from mpitrain.protocols.server.interface import Claimed
from mpitrain.protocols.server.link import Line, receive
from mpitrain.protocols.server.versioned import Memory
from mpitrain.training.context import Session

IDLE_LOOKS = 50  # of a master for which there is nothing to do
TRIES = 3  # of a reader, before it asks by message


class MergedCentre:
    """A worker's face."""

    direct = True  # the worker stages its vectors itself

    def __init__(self, session: Session, memory: Memory, line: Line) -> None:
        self._memory, self._line, self._device = memory, line, session.device
        self._transport = session.device.transport(session.transport)
        self._in_order = session.config.algorithm.in_order
        self.gradient, self.pieces = memory.gradient, [slice(0, memory.gradient.size)]
        self._claimed = False  # a pushed gradient is a claim, too
        self._at_least = 0  # the index of a Θ with this worker's last gradient
        self._sending: Any = None

    def claim(self, has: int = 0) -> Claimed:
        if not self._claimed:
            self._line.tell(Claim())
        answer = self._line.answer(Assignment, "samples from the master")
        self.settle()
        self._claimed = self._line.granted = False  # a grant came too late
        self._at_least = answer.index
        return Claimed([answer.work] if answer.work else [], False, answer.learning_rate)

    def read(self, piece: slice, out: Array) -> int:
        """Copy Θ_j with j no older than this worker's own last update; j."""
        for _ in range(TRIES):
            index = self._memory.read(out)
            if index is not None and index >= self._at_least:
                break
        else:
            index = self._ask(out)
        if self._in_order:
            self._line.tell(Pulled())
        return index

    def _ask(self, out: Array) -> int:
        self._line.tell(Pull())
        told = self._line.answer(Piece, "Θ from the master")
        receive(self._transport, self._device.checksum, self._line.master, told, out, "a copy of Θ")
        return told.index

    def push(self, piece: slice, d: Array, told: Gradient | None = None) -> None:
        assert told is not None
        self._claimed = True
        if self._memory.handed_over(self._transport.rank) is not None:  # `gradient`, where the master sees it
            self._transport.traffic.bytes_sent += d.nbytes
            self._line.tell(told)
            return
        self._line.tell(replace(told, nbytes=d.nbytes, checksum=self._device.checksum(d)))
        self._sending = self._transport.send(self._line.master, Tag.VECTOR, d)

    def asked_for(self, ready: bool) -> bool:
        """Whether the master wants the gradient now, which it is told of once when it is `ready`."""
        if ready:
            self._line.tell(Ready())
        self._line.look()
        return self._line.granted or self._line.stopping

    def progress(self) -> None:
        self._line.look()

    def settle(self) -> None:
        if self._sending is not None:
            self._transport.wait(self._sending, "a gradient to leave", whom=[self._line.master])
            self._sending = None

    complete = settle  # the answer to the next claim comes when Θ includes it

    def close(self) -> None:
        self._memory.close()


class MergingCentre:
    """The master's face. `memory.theta` is Θ, unless a GPU keeps it: then it is a copy in host memory."""

    nap: float | None = None

    def __init__(self, session: Session, memory: Memory) -> None:
        self._memory, self._device, self._state = memory, session.device, session.state
        self._transport = session.device.transport(session.transport)
        self._copies = Snapshots(self._transport, self._device)

    @property
    def idle_looks(self) -> int:
        return 0 if self._copies.asked else IDLE_LOOKS

    def put(self, theta: Array) -> Array:
        with self._memory.writing(self._state.index):
            if type(self._memory.theta) is not type(theta):
                self._device.download(theta, self._memory.theta)
                return theta
            np.copyto(self._memory.theta, theta)
        return self._memory.theta

    def writing(self, index: int) -> Any:
        """Context in which Θ changes from index − 1 to index."""
        return self._memory.writing(index)

    def show(self) -> None:
        """Bring Θ to where workers read it, unless it is there."""
        if self._state.theta is not self._memory.theta:
            self._device.download(self._state.theta, self._memory.theta)

    def gradient(self, worker: int, told: Gradient) -> Array:
        """The gradient that a worker tells of, on the device. Raises WireError when it is damaged."""
        seen = self._memory.handed_over(worker)
        if seen is None:
            seen = self._memory.gradient
            receive(self._transport, self._device.checksum, worker, told, seen, "a gradient")
        return self._device.to_device(seen)

    def copy(self, out: Array) -> None:
        np.copyto(out, self._state.theta)

    def place(self) -> int:
        return 0  # the master hands samples out

    def take(self, sender: int, message: FromWorker) -> bool:
        if isinstance(message, Pull):
            self._copies.asked.append(sender)
        return isinstance(message, Pull)

    def serve(self) -> bool:
        theta = self._state.theta if self._device.phantom else self._memory.theta
        return self._copies.send(theta, self._state.index)

    def close(self) -> None:
        """Collective, once what was sent has left."""
        self._copies.finish()
        if self._state.theta is self._memory.theta:
            self._state.theta = self._memory.theta.copy()
        self._memory.close()
