"""Synchronous EASGD and EAMSGD (Zhang, Choromanska & LeCun 2015, equations 5 to 7): all ranks are workers, in step.

When τ divides the common clock, the mean of all xⁱ is summed while the gradient is computed at the very xⁱ that it is
of; then x̃, which every rank holds, moves by equation 6, and xⁱ by equation 5 or 7.
"""

from typing import Any, cast

import numpy as np

from mpitrain.algorithms import Pulled
from mpitrain.checkpoint import coordination
from mpitrain.errors import TrainingFailed
from mpitrain.flat import block_of, block_slices, blocks, scratch_for
from mpitrain.protocols.elastic import warn
from mpitrain.rules import elastic
from mpitrain.schedules.local_rate import LocalRate
from mpitrain.training.context import Session

PIECE = 1 << 20  # elements of one sum over the ranks
YIELDING = 1e-3  # seconds without sleeps at the end of a step, which all ranks reach at about the same time


def run(session: Session) -> None:
    """Train until all samples are served or a stop is asked for. Collective over all members."""
    warn(session, len(session.members))
    session.state.place(session.device)
    session.say_exchange("allreduce" if len(session.members) > 1 else "none")
    Stepper(session).train()


class Stepper:
    """One rank's x, v, and copy of x̃; all ranks take their shares of one minibatch after another."""

    def __init__(self, session: Session) -> None:
        self.session, self.state = session, session.state
        self.transport = session.device.transport(session.transport)
        self.options, self.ranks = cast(Pulled, session.config.algorithm), session.members
        self.part = self.ranks.index(self.transport.rank)
        self.centre = self.state.theta
        seed, x = session.config.training.seed, self.centre
        if self.options.starts_apart:
            x = session.device.place(session.network.initial(seed + 1 + self.part, x.dtype))
        self.worker = self.options.worker(x, self.centre, len(self.ranks), session.device.fast)
        self.state.local = self.worker.vectors
        self.rate, self.t = LocalRate(self.options.rate_decay, self.options.plateau), 0
        self.mean, self._g = np.empty_like(x), np.empty_like(x)
        self._scratch = scratch_for(x)
        self._sums: list[tuple[Any, slice]] = []
        self._small = np.zeros(4)
        self._take_up()

    def train(self) -> None:
        """Until the end, or until some rank was told to stop."""
        state, monitor = self.state, self.session.monitor
        while (work := self._next_work()) is not None:
            loss, stopping, saving_due = self._step(work)
            if not np.isfinite(loss):
                raise TrainingFailed(
                    f"the loss is no longer finite at step {self.t}; a smaller training.learning_rate may help"
                )
            monitor.trained(work.count, loss * work.count)
            state.index += 1
            monitor.updated()
            self._note_numbers()
            if saving_due:
                self._save()
            monitor.turn(state, whole=True, saves=False)
            self.transport.heartbeat()
            if stopping:
                break

    def _step(self, work: Any) -> tuple[float, bool, bool]:
        """One step of every rank; mean loss, whether some rank wants to stop, whether the first wants to save."""
        share, worker = work.share(self.part, len(self.ranks)), self.worker
        eta = self.rate(self.eta, self.t)
        exchange = self.t % self.options.tau == 0
        if exchange:
            worker.begin(eta, len(self.ranks))
            self._start_exchange()

        def update(part: slice) -> None:
            for b in block_slices(part, block_of(self._g)):
                worker.step(b, self._g[b], eta, self.t, exchange)
            self._progress()

        loss = 0.0
        if share.count:
            loss = self.session.learner.gradient(worker.at, self._g, share, update) * share.count
        else:  # fewer samples than ranks: this one moves without a gradient
            self._g.fill(0)
            update(slice(0, self._g.size))
        if exchange:
            self._end_exchange()
        self._small[:] = loss, share.count, self.session.stop.flag, self.session.monitor.save_due()
        self.transport.wait(self.transport.start_sum(self._small), "the other ranks' losses", yielding=YIELDING)
        self.t += 1
        mean = float(self._small[0] / self._small[1])
        self.rate.observe(mean)
        return mean, bool(self._small[2]), bool(self._small[3])

    def _start_exchange(self) -> None:
        """d ← α(xⁱ − x̃), and the sum of all xⁱ on its way."""
        whole = slice(0, self.mean.size)
        for piece in block_slices(whole, PIECE):
            for b in block_slices(piece, block_of(self.mean)):
                self.worker.exchange(b, self.centre[b], self.t)
                np.copyto(self.mean[b], self.worker.x[b])
            if len(self.ranks) > 1:
                self._sums.append((self.transport.start_sum(self.mean[piece]), piece))

    def _progress(self) -> None:
        for request, _ in self._sums:
            request.Test()

    def _end_exchange(self) -> None:
        """Equation 6: x̃ ← (1 − β)x̃ + β(1/p)Σxⁱ, β = pα."""
        for request, _ in self._sums:
            self.transport.wait(request, "the other ranks' parameters")
        self._sums.clear()
        ranks, alpha = len(self.ranks), self.worker.alpha
        for b in blocks(self.mean.size, block_of(self.mean)):
            mean, scratch = self.mean[b], self._scratch[: b.stop - b.start]
            np.divide(mean, ranks, out=mean)
            elastic.synchronous_centre(self.centre[b], mean, scratch, beta=ranks * alpha)

    def _next_work(self) -> Any:
        """The next minibatch of all ranks together: of one epoch and one stage."""
        assignments, schedule = self.state.assignments, self.session.schedule
        settings = schedule.at(assignments.position)
        self.eta = settings.learning_rate
        size = self.options.samples_of_step(settings.minibatch, len(self.ranks))
        return assignments.next(size, 1, schedule.until_change(assignments.position))

    def _take_up(self) -> None:
        """Go on from a checkpoint of the same ranks; of others, from its x̃."""
        self._note_numbers()
        if coordination.restore(self.session):
            numbers = self.state.local_numbers
            self.t = numbers["t"]
            self.rate.restore(numbers["rate"])
            self.worker.restored()

    def _note_numbers(self) -> None:
        self.state.local_numbers.update(t=self.t, rate=self.rate.numbers())

    def _save(self) -> None:
        """All ranks together, between two steps."""
        monitor = self.session.monitor
        if self.transport.rank == self.ranks[0]:
            monitor.save = lambda outstanding: coordination.together(self.session, outstanding)
            monitor.checkpoint(self.state)
        else:
            coordination.together(self.session, [])
