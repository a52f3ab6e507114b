"""The server's vectors on their way: gradients to where they are applied, Θ to those who ask for it."""

from typing import Any

import numpy as np

from mpitrain.errors import WireError
from mpitrain.flat import Array
from mpitrain.mpi.tags import Tag
from mpitrain.protocols.centre import Centre
from mpitrain.protocols.messages import TO_SERVED, Gradient, Snapshot
from mpitrain.training.context import Session


class Vectors:
    """The server's half of the vectors' exchange. `asked`: the workers who wait for a Θ by message."""

    def __init__(self, session: Session, centre: Centre) -> None:
        self.device, self.state, self.centre = session.device, session.state, centre
        self.transport = session.device.transport(session.transport)
        self.asked: list[int] = []
        self._snapshot: Array | None = None
        self._sends: list[Any] = []

    def gradient(self, worker: int, told: Gradient) -> Array:
        """The gradient that a worker tells of, on the device. Raises WireError when it is damaged."""
        seen = self.centre.handed_over(worker)
        return self.device.to_device(self._receive(worker, told) if seen is None else seen)

    def _receive(self, worker: int, told: Gradient) -> Array:
        received = self.centre.gradient
        if told.nbytes != received.nbytes:
            raise WireError(f"rank {worker} sends {told.nbytes} bytes, expected {received.nbytes}")
        self.transport.receive_into(worker, Tag.VECTOR, received, f"the gradient of rank {worker}")
        if self.device.checksum(received) != told.checksum:
            raise WireError(f"rank {worker} sent a gradient that does not match its checksum")
        return received

    def show(self) -> None:
        """Bring Θ to where workers read it, unless it is there."""
        if self.state.theta is not self.centre.theta:
            self.device.download(self.state.theta, self.centre.theta)

    def answer(self) -> bool:
        """Send those who asked a copy of Θ as it is between two updates, once the copy before has left; whether so."""
        if not self.asked:
            return False
        self._sends = [send for send in self._sends if not send.Test()]
        if self._sends:
            return False  # the copy is still on its way to somebody
        if self._snapshot is None:
            self._snapshot = np.empty_like(self.centre.theta)
        np.copyto(self._snapshot, self.centre.theta)
        check = self.device.checksum(self._snapshot)
        told = Snapshot(self.state.index, self._snapshot.nbytes, check)
        for worker in self.asked:
            TO_SERVED.post(self.transport, worker, told)
            self._sends.append(self.transport.send(worker, Tag.VECTOR, self._snapshot))
        self.asked.clear()
        return True

    def finish(self) -> None:
        """Wait until what was sent has left."""
        for send in self._sends:
            self.transport.wait(send, "a snapshot of Θ to leave")
