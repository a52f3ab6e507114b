"""Elastic averaging and block momentum around a user's own steps."""

import msgspec
import numpy as np

from mpitrain.algorithms.optimizers import plain
from mpitrain.algorithms.roles import AveragingRule, WorkerRule
from mpitrain.api.loop.loader import Dealt
from mpitrain.api.loop.method import Method, Told
from mpitrain.api.loop.past import Apply, Past
from mpitrain.checkpoint.state import Numbers, Vectors, checked
from mpitrain.errors import say
from mpitrain.flat import Array, block_of, block_slices
from mpitrain.protocols.model_averaging import CommonCentre
from mpitrain.protocols.server.windows import WindowCentre
from mpitrain.sampling.queue import Natural


class SincePast(msgspec.Struct, frozen=True):
    """A rank's numbers in a save: the steps since the last average, and the learning rate of the last step."""

    since: Natural
    eta: float


class Moving(Method):
    """The user's parameters are those of the algorithm's `rule`. An exchange takes effect on them just before the next
    step, whose gradient is from before the exchange (Algorithm 1 of the EASGD paper)."""

    rule: WorkerRule

    def begin(self) -> None:
        self._moves, self._t, self.eta = False, 0, self.flat.learning_rate

    def before_step(self) -> None:
        self.eta = self.flat.learning_rate
        self.move()

    def move(self) -> None:
        """Let the exchange take effect on this rank's parameters, if it has not yet."""
        if self._moves:
            x = self.flat.x
            for b in block_slices(slice(0, x.size), block_of(x)):
                self.rule.step(b, x[b], self.eta, self._t, True)
            self._moves = False

    def exchanged(self, t: int) -> None:
        """Note that an exchange of step t is to take effect."""
        self._moves, self._t = True, t

    def say_if_unmoved(self, t: int) -> None:
        """Say so if there was only the first exchange, when ranks and centre were still the same."""
        if 0 < t <= (tau := self.algorithm.period) and self.transport.rank == 0:
            line = f"the loop took {t} batches, which moved no centre: the model is as before"
            say(f"warning: algorithm.tau = {tau}: {line}")


class Averages(Moving):
    """All ranks hold the centre, and exchange at the same step by sums over the ranks."""

    rule: AveragingRule

    def begin(self) -> None:
        super().begin()
        theta = self.flat.vector()
        self.vectors = {"theta": theta, **self.algorithm.beside(theta)}
        self._start_from_centre()

    def _start_from_centre(self) -> None:
        theta = self.vectors["theta"]
        self.rule = self.algorithm.averaging(theta, self.vectors, self.ranks, plain)
        self.flat.bind(self.rule.local.x)
        self._centre, self._since = CommonCentre(self.transport, self.rule, self.vectors, self.ranks), 0
        self.attendance.progress = self._centre.progress

    def before(self, t: int, batch: Dealt) -> None:
        if self.rule.overlaps and self.rule.due(t):
            self._start(t, self.flat.learning_rate)
            self.exchanged(t)
            self.attendance.busy = self.ranks > 1

    def after(self, t: int) -> None:
        self.move()
        self.attendance.busy = False
        due = self.rule.due(t)
        if due and not self.rule.overlaps:
            self._start(t, self.eta)
        if due:
            self._centre.end()
        self._since = 0 if due or self.rule.overlaps else self._since + 1

    def finish(self, t: int) -> None:
        self.leave(t)
        if self.rule.overlaps:
            self.say_if_unmoved(t)
        if self._since:
            self.rule.shorten(self._since)
            self._start(t, self.eta)
            self._centre.end()

    def model(self) -> Array:
        return self.vectors["theta"]

    def keep(self) -> tuple[Vectors, Numbers]:
        return {**self.vectors, "x": self.flat.x}, {"since": self._since, "eta": self.eta}

    def take_up(self, past: Past) -> Apply:
        vectors = {name: past.vector(name, own) for name, own in self.vectors.items()}
        x, numbers = past.vector("x", self.flat.x), checked(past.numbers.method, SincePast)

        def apply() -> None:
            for name, vector in vectors.items():
                np.copyto(self.vectors[name], vector)
            self.eta = numbers.eta
            if past.same:
                np.copyto(self.flat.x, x)
                self.rule.local.look()
                self._since = numbers.since
            else:
                self._start_from_centre()
            self.rule.began = past.clock.t - self._since

        return apply

    def _start(self, t: int, eta: float) -> None:
        self.algorithm.check_loop(self.flat.one_rate)
        rate = eta if self.algorithm.follows_rate else 0.0
        self.roll.call(t, "the other ranks' next average", Told(unfit=not self.flat.finite, rate=rate))
        self._centre.start(eta, t)


class Attracted(Moving):
    """Asynchronous elastic averaging: shares of the centre are in all ranks' windows, and no rank serves it."""

    in_step = False

    def begin(self) -> None:
        super().begin()
        theta = self.flat.vector()
        self.rule = self.algorithm.worker(theta, theta, self.ranks, plain)
        self.flat.bind(self.rule.local.x)
        self._kept, self._read = None, np.empty(block_of(theta), theta.dtype)
        self._centre = WindowCentre(self.transport, self.transport.members, theta.size, theta.dtype, None)
        self._centre.put(theta)
        self.attendance.busy, self.attendance.progress = True, self._centre.progress

    def before(self, t: int, batch: Dealt) -> None:
        if t % self.algorithm.period:
            return
        self.require_finite()
        self.rule.begin(self.flat.learning_rate, self.ranks)
        for piece in self._centre.pieces:
            centre = self._read[: piece.stop - piece.start]
            self._centre.read(piece, centre)
            self._centre.push(piece, self.rule.exchange(piece, centre, t))
        self.exchanged(t)

    def after(self, t: int) -> None:
        self.move()
        self._centre.settle()

    def finish(self, t: int) -> None:
        self.require_finite()
        self._centre.complete()
        self.leave(t)
        self.say_if_unmoved(t)
        self._kept = self.model()

    def close(self) -> None:
        self.attendance.busy = False
        self._centre.close()

    def model(self) -> Array:
        if self._kept is not None:
            return self._kept
        model = np.empty_like(self.flat.x)
        self._centre.copy(model)
        return model

    def settle(self) -> None:
        self._centre.complete()
        self.transport.barrier("the other ranks' last moves of the centre")

    def keep(self) -> tuple[Vectors, Numbers]:
        return {"x": self.flat.x, "centre": self.model()}, {}

    def take_up(self, past: Past) -> Apply:
        x, centre = past.vector("x", self.flat.x), past.vector("centre", self.flat.x)

        def apply() -> None:
            np.copyto(self.flat.x, x if past.same else centre)
            self.rule.local.look()
            self._centre.put(centre)

        return apply
