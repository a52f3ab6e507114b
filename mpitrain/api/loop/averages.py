"""Elastic averaging and block momentum around a user's own steps."""

import sys

import numpy as np

from mpitrain.algorithms.interface import Algorithm
from mpitrain.algorithms.optimizers import plain
from mpitrain.algorithms.roles import AveragingRule, WorkerRule
from mpitrain.api.loop.attendance import Attendance
from mpitrain.api.loop.method import Handed, Method, Roll
from mpitrain.api.loop.module import FlatModule
from mpitrain.errors import TrainingFailed
from mpitrain.flat import Array, block_of, block_slices
from mpitrain.mpi import Transport
from mpitrain.protocols.model_averaging import CommonCentre
from mpitrain.protocols.server.windows import WindowCentre


class Moving(Method):
    """The user's parameters are those of the algorithm's `rule`, which moves them just before the first step after an
    exchange: by a gradient from before it (Algorithm 1 of the EASGD paper)."""

    rule: WorkerRule

    def __init__(self, transport: Transport, flat: FlatModule, attendance: Attendance) -> None:
        super().__init__(transport, flat, attendance)
        self._moves, self._t, self.eta = False, 0, flat.learning_rate

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
        """An exchange of step t is to take effect."""
        self._moves, self._t = True, t


class Averages(Moving):
    """All ranks hold the centre, and exchange at the same step by sums over the ranks."""

    rule: AveragingRule

    def __init__(self, transport: Transport, flat: FlatModule, attendance: Attendance, algorithm: Algorithm) -> None:
        super().__init__(transport, flat, attendance)
        theta = flat.vector()
        self.vectors = {"theta": theta, **algorithm.beside(theta)}
        self.rule = algorithm.averaging(theta, self.vectors, self.ranks, plain)
        flat.bind(self.rule.local.x)
        self._centre = CommonCentre(transport, self.rule, self.vectors, self.ranks)
        self._roll, self._since = Roll(transport), 0
        attendance.progress = self._centre.progress

    def before(self, batch: Handed) -> None:
        if self.rule.overlaps and self.rule.due(batch.t):
            self._start(batch.t, self.flat.learning_rate)
            self.exchanged(batch.t)
            self.attendance.busy = self.ranks > 1

    def after(self, batch: Handed) -> None:
        self.move()
        self.attendance.busy = False
        due = self.rule.due(batch.t)
        if due and not self.rule.overlaps:
            self._start(batch.t, self.eta)
        if due:
            self._centre.end()
        self._since = 0 if due or self.rule.overlaps else self._since + 1

    def finish(self, t: int) -> None:
        self._roll.start(leaving=True)
        self._roll.end(t, "the end of the loop")
        if self._since:
            self.rule.shorten(self._since)
            self._start(t, self.eta)
            self._centre.end()

    def model(self) -> Array:
        return self.vectors["theta"]

    def _start(self, t: int, eta: float) -> None:
        self._roll.start(unfit=not self.flat.finite)
        self._roll.end(t, "the other ranks' next average")
        self._centre.start(eta, t)


class Attracted(Moving):
    """Asynchronous elastic averaging: the centre lies in shares in all ranks' windows, and nobody serves it."""

    def __init__(self, transport: Transport, flat: FlatModule, attendance: Attendance, algorithm: Algorithm) -> None:
        super().__init__(transport, flat, attendance)
        theta = flat.vector()
        self.rule = algorithm.worker(theta, theta, self.ranks, plain)
        flat.bind(self.rule.local.x)
        self._period, self._read = algorithm.period, np.empty(block_of(theta), theta.dtype)
        self._centre = WindowCentre(transport, transport.members, theta.size, theta.dtype, None)
        self._centre.put(theta)
        attendance.busy, attendance.progress = True, self._centre.progress
        self._roll, self._kept = Roll(transport), None

    def before(self, batch: Handed) -> None:
        if batch.t % self._period:
            return
        self._require_finite()
        self.rule.begin(self.flat.learning_rate, self.ranks)
        for piece in self._centre.pieces:
            centre = self._read[: piece.stop - piece.start]
            self._centre.read(piece, centre)
            self._centre.push(piece, self.rule.exchange(piece, centre, batch.t))
        self.exchanged(batch.t)

    def after(self, batch: Handed) -> None:
        self.move()
        self._centre.settle()

    def finish(self, t: int) -> None:
        self._require_finite()
        self._centre.complete()
        self._roll.start(leaving=True, count=t)
        counts = self._roll.end(t, "the end of the loop")
        if self.transport.rank == 0 and min(counts) < max(counts):
            took = ", ".join(map(str, counts))
            print(f"mpitrain: warning: the ranks took {took} batches: one left the loop early", file=sys.stderr)
        self._kept = self.model()
        self.attendance.busy = False
        self._centre.close()

    def model(self) -> Array:
        if self._kept is not None:
            return self._kept
        model = np.empty_like(self.flat.x)
        self._centre.copy(model)
        return model

    def _require_finite(self) -> None:
        if not self.flat.finite:
            raise TrainingFailed(f"rank {self.transport.rank}: the parameters are not finite")
