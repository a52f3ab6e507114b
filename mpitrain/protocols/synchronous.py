"""Sequential SGD on one rank, and the same on several that share every minibatch (`allreduce`).

All ranks hold the same θ and apply the same update. A rank's share of the gradient is summed over the ranks bucket by
bucket while backward still computes the earlier layers; the update of a bucket follows its sum at once, unless
gradients are clipped or the training is to go on without ranks that are lost.
"""

from dataclasses import replace

import numpy as np

from mpitrain.algorithms.averaging import moving_average
from mpitrain.algorithms.optimizers import Descent
from mpitrain.flat import Array, block_pairs, scratch_for
from mpitrain.models.model import Consumer
from mpitrain.protocols.standby import hear
from mpitrain.sampling.queue import Work
from mpitrain.training.buckets import Buckets
from mpitrain.training.context import Session
from mpitrain.training.gradients import clip
from mpitrain.training.loop import Together


def run(session: Session) -> None:
    """Train until all samples are served or a stop is asked for. Collective over all members."""
    if session.transport.rank not in session.members:
        return
    session.state.to_device(session.device.to_device)
    session.say_exchange("allreduce" if len(session.members) > 1 else "none")
    AllreduceStepper(session).train()


class AllreduceStepper(Together):
    """Makes one update after another; with several ranks, nonblocking all-reduces sum the gradient."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._in_hand: list[Work] = []  # the minibatch whose update has not been made yet
        session.outstanding = lambda: self._in_hand
        #: Whether no part is updated before all parts are summed: a lost rank may keep some sums from completing.
        self._all_or_nothing = session.goes_on
        self.options, fast = session.config.algorithm, session.device.fast
        self.gradient, self._scratch = np.empty_like(self.state.theta), scratch_for(self.state.theta)
        self._local = Descent(self.options.optimizer(fast), self.state.theta, self.state.beside)
        self._average = fast(moving_average) if "average" in self.state.beside else None
        if len(self.ranks) > 1:
            self.transport, self._small = session.device.transport(session.transport), np.zeros(3)
            self._buckets = Buckets(
                self.options.bucket_mb, self.gradient, lambda part: self.transport.start_sum(self.gradient[part])
            )

    def step(self, work: Work) -> float:
        """Make one update; returns the global minibatch's mean loss. Sets `stopping` if some rank was told to stop."""
        self._in_hand = [work]
        if len(self.ranks) > 1:
            loss = self._step_together(work, work.share(self.part, len(self.ranks)))
        else:
            update = Consumer(self.gradient, self._update)
            loss = self.session.learner.gradient(self._local.at, self.gradient, work, update)
            self._in_hand = []
            hear(self.session)
            self.stopping = self.session.stop.flag
        self.state.index += 1
        return loss

    def _step_together(self, work: Work, share: Work) -> float:
        """Sum the shares' gradients and update."""
        learner, ranks = self.session.learner, len(self.ranks)
        # A rank's mean gradient is weighted by its share of the minibatch; if all shares are equal, the update divides
        # their sum instead, while it is in cache. The optimizer, which may not be linear in it, gets the mean.
        equal = not learner.per_sample and work.count % ranks == 0
        scale = learner.scale(share) if learner.per_sample or equal else share.count / work.count
        # With fewer samples than ranks some have none: they take one with weight 0, for the same buckets as the others.
        mine = share if share.count else replace(share, start=work.start, count=1)
        at, ready = self._local.at, self._buckets.add
        loss = learner.scaled_gradient(at, self.gradient, mine, scale, ready, work) * share.count
        self._small[:] = loss, share.count, self.session.stop.flag
        small = self.transport.start_sum(self._small)
        # `clip` bounds the mean gradient; what the ranks have summed is `unit` times the mean.
        rest, unit = 1.0 / ranks if equal else 1.0, learner.scale(work) * (ranks if equal else 1.0)
        at_once = not (learner.clip_norm or self._all_or_nothing)
        for request, part in self._buckets.drain():
            self.transport.wait(request, "the other ranks' gradients")
            if at_once:
                self._update(part, self.gradient[part], rest)
        self.transport.wait(small, "the other ranks' losses")
        if learner.clip_norm:
            clip(self.gradient, learner.clip_norm, unit)
        if not at_once:
            self._update(slice(0, self.gradient.size), self.gradient, rest)
        self._in_hand = []
        self.stopping = bool(self._small[2])
        return float(self._small[0] / self._small[1])

    def _update(self, part: slice, gradient: Array, scale: float = 1.0) -> None:
        """Update a part by `scale` times its `gradient`, which is final; backward no longer needs these parameters."""
        t = self.state.index - self.state.began
        for b, g in block_pairs(part, gradient):
            if scale != 1.0:
                np.multiply(g, scale, out=g)  # the same object: else CuPy makes a copy first
            if self._average is not None:  # takes in θ_t just before update t + 1
                z, scratch = self.state.beside["average"][b], self._scratch[: b.stop - b.start]
                self._average(z, self.state.theta[b], scratch, rate=self.options.averaging_rate(t))
            self._local.step(b, g, self.learning_rate, t)
