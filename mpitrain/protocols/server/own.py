"""A centre in the memory of one process, where nobody else reaches it."""

from collections.abc import Callable

import numpy as np

from mpitrain.algorithms.elastic import move_centre
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.flat import BLOCK, Array, block_of, blocks
from mpitrain.protocols.messages import FromWorker, Gradient
from mpitrain.protocols.server.interface import Claimed, Source
from mpitrain.protocols.server.updates import Updates
from mpitrain.training.context import Session


class LocalCentre:
    """x̃ in this process's own memory on the device, and the place in the queue."""

    def __init__(self, size: int, dtype: np.dtype, source: Source, device: Cpu = CPU) -> None:
        self._source, self._place, self._device = source, 0, device
        self.theta = device.to_device(np.zeros(size, dtype))
        self.pieces = list(blocks(size, BLOCK if device.phantom else block_of(self.theta)))

    def put(self, theta: Array) -> Array:
        self._device.upload(self.theta, theta)
        return theta

    def copy(self, out: Array) -> None:
        self._device.download(self.theta, out)

    def place(self) -> int:
        return self._place

    def push(self, piece: slice, d: Array, told: Gradient | None = None) -> None:
        """x̃ ← x̃ + d."""
        move_centre(self.theta[piece], d)

    def close(self) -> None:
        pass


class OwnCentre(LocalCentre):
    """Master and worker are one process: both faces of a centre that only adds."""

    direct = True
    nap: float | None = None
    idle_looks = 0

    def claim(self, has: int = 0) -> Claimed:
        claimed, self._place = self._source.claim(self._place, 0, has)
        return claimed

    def read(self, piece: slice, out: Array) -> None:
        np.copyto(out, self.theta[piece])

    def progress(self) -> None:
        pass

    settle = complete = progress

    def take(self, sender: int, message: FromWorker) -> bool:
        return False

    def serve(self) -> bool:
        return False


class OwnMerged:
    """Master and worker are one process: a worker's face of a centre Θ that a master merges gradients into.

    `after_update` does what is due after every gradient.
    """

    direct = True

    def __init__(self, session: Session, after_update: Callable[[], None]) -> None:
        self._session, self._after_update = session, after_update
        self._updates, self._theta = Updates(session), session.state.theta
        self.pieces, self.gradient = [slice(0, self._theta.size)], np.empty_like(self._theta)

    def claim(self, has: int = 0) -> Claimed:
        schedule, queue = self._session.schedule, self._session.state.queue
        settings, left = schedule.at(queue.position), schedule.until_change(queue.position)
        period = self._updates.options.period
        self._given = None if self._session.stop.flag else queue.next(settings.minibatch, period, left)
        eta = self._session.state.rate(settings.learning_rate)
        return Claimed([self._given] if self._given else [], False, eta)

    def read(self, piece: slice, out: Array) -> int:
        np.copyto(out, self._theta[piece])
        return self._session.state.index

    def push(self, piece: slice, d: Array, told: Gradient | None = None) -> None:
        assert told is not None and self._given is not None
        trained = 0
        if self._updates.accepts(d, told, 0):
            self._updates.apply(d, told, 0)
            trained = told.work.count
            self._session.counters.trained(trained, told.loss)
        self._session.state.queue.give_back(self._given.rest(trained))
        self._after_update()

    def asked_for(self, ready: bool) -> bool:
        """Whether the gradient is to be handed over at once."""
        return self._session.stop.flag

    def progress(self) -> None:
        pass

    settle = complete = close = progress
