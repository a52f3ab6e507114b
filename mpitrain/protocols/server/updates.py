"""Which gradients a master accepts, and how it updates the state by them. No messages."""

from collections import Counter

import numpy as np

from mpitrain.algorithms.optimizers import Buffers
from mpitrain.algorithms.roles import Merge
from mpitrain.errors import TrainingFailed
from mpitrain.flat import Array, block_of, blocks, scratch_for
from mpitrain.protocols.messages import Gradient
from mpitrain.training.context import Session


class Updates:
    """Checks a gradient, and applies it to the state of the session."""

    def __init__(self, session: Session) -> None:
        self.state, self.counters, self.journal = session.state, session.counters, session.journal
        self.options, self.schedule = session.config.algorithm, session.schedule
        self.rule = self.options.master(session.device.fast)
        self.limit = session.config.run.nonfinite_limit
        self._refused_in_a_row: Counter[int] = Counter()  # by worker: others' gradients may be fine all the while
        self._previous = np.empty_like(self.state.theta) if session.config.run.gradient_statistics else None
        self._previous_from = -1
        self._scratch = scratch_for(self.state.theta)
        self._highest = max(each.learning_rate for each in self.schedule.all)
        self._workers = session.members[session.has_master :]
        self._of_worker: dict[int, Buffers] = {}  # what the algorithm keeps for each worker

    def begins(self, worker: int) -> None:
        """Note that a worker gets samples, whose gradient it computes at the present Θ."""
        if (seen := self._kept_for(worker).get("seen")) is not None:
            np.copyto(seen, self.state.theta)

    def _kept_for(self, worker: int) -> Buffers:
        if not self._of_worker:  # vectors are now restored, and on the device
            vectors = self.state.vectors()
            self._of_worker = {each: self.options.of_worker(vectors, len(self._workers)) for each in self._workers}
        return self._of_worker.get(worker, {})

    def accepts(self, gradient: Array, told: Gradient, worker: int) -> bool:
        """Whether the gradient is applied. If not, its samples have not been trained on, and go back to the queue.

        Drops one that is too old. Counts and names a worker whose gradient is not finite; raises TrainingFailed when
        that persists for one worker.
        """
        if self.options.too_stale(self.state.index - told.index):
            self.counters.samples_dropped += told.work.count
            return False
        with np.errstate(over="ignore", invalid="ignore"):
            square = float(np.dot(gradient, gradient))  # one pass at memory speed; finite elements may overflow it
        if np.isfinite(square) or np.isfinite(gradient).all():
            self._refused_in_a_row[worker] = 0
            return True
        self._refused_in_a_row[worker] += 1
        self.counters.refusals += 1
        samples = f"samples {told.work.start} to {told.work.start + told.work.count} of epoch {told.work.epoch}"
        line = f"rank {worker}: its gradient from update {told.index} over {samples} is not finite"
        self.journal.progress.line(f"{line}; it is refused, and its samples are handed out again")
        self.journal.write("refused", worker=worker, index=told.index, loss=told.loss)
        if self._refused_in_a_row[worker] >= self.limit:
            raise TrainingFailed(
                f"{line}, nor were the {self.limit - 1} before it (run.nonfinite_limit); "
                "a smaller training.learning_rate may help"
            )
        return False

    def apply(self, gradient: Array, told: Gradient, worker: int) -> None:
        """Apply the algorithm's update; counts the index i and the staleness i − j of the worker's Θ_j.

        Learning rate and momentum are those of the master's index (Chan & Lane 2014, Algorithm 1: LEARNINGRATE(i),
        MOMENTUM(i)): of the stage that the samples merged so far have reached.
        """
        state, now = self.state, self.schedule.at(self.counters.trained_all)
        stale, vectors = state.index - told.index, state.vectors() | self._kept_for(worker)
        rate = state.rate(now.learning_rate)
        workers = min(now.workers or len(self._workers), len(self._workers))
        share = told.work.count / (self.options.period * told.work.minibatch)
        at = Merge(rate, stale, state.index, now.momentum, self._highest, state.began, workers, share)
        for b in blocks(state.theta.size, block_of(state.theta)):
            parts = {name: vector[b] for name, vector in vectors.items()}
            scratch = self._scratch[: b.stop - b.start]
            self.rule.merge(parts, gradient[b], scratch, at)
        self.counters.updated(stale)
        state.rate.observe(told.loss / told.work.count * told.minibatches, told.minibatches)
        if self._previous is not None:
            self._compare(self._previous, gradient, worker)
        state.index += 1

    def _compare(self, previous: Array, gradient: Array, worker: int) -> None:
        """Chan & Lane §3.4: the cosine between what two workers sent."""
        if self._previous_from not in (-1, worker):
            norms = np.linalg.norm(gradient) * np.linalg.norm(previous)
            if norms:
                self.counters.figures.give("gradient_cosine_mean", float(np.dot(gradient, previous) / norms))
        np.copyto(previous, gradient)
        self._previous_from = worker
