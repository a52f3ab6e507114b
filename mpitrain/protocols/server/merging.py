"""A worker of a centre that a master merges into: it pulls Θ_j, takes n minibatches, stepping its own θ, and pushes the
sum of their gradients, or what else the algorithm's rule makes of them.

With `until_free`, it tells the master after n minibatches that it is ready, and computes on until the master grants.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from mpitrain.flat import Array, block_of, block_slices
from mpitrain.protocols.messages import Gradient
from mpitrain.protocols.server.interface import Claimed
from mpitrain.protocols.server.merged import MergedCentre, OwnMerged
from mpitrain.training.context import Session
from mpitrain.training.loop import Loop, Trainer


def merge_alone(session: Session) -> None:
    """Train with a centre that gradients are merged into, and its one worker, in one process: without messages."""
    session.state.to_device(session.device.to_device)
    trainer = Trainer(session)
    trainer.all_wait = True
    MergingWorker(session, OwnMerged(session, partial(session.monitor.turn, trainer))).train()


class MergingWorker(Loop[Claimed]):
    """A worker's buffers and its loop."""

    def __init__(self, session: Session, centre: MergedCentre | OwnMerged) -> None:
        super().__init__(session)
        self.centre, self.transport = centre, session.transport
        self.options, device = session.config.algorithm, session.device
        self.theta = np.zeros_like(device.to_device(session.state.theta))
        self.gradient = np.empty_like(self.theta)
        # If this worker's vectors and the centre's are in different memories, Θ and the sum are copied between them.
        apart = type(self.theta) is not type(centre.gradient)
        self._read = device.host_like(self.theta) if apart else self.theta
        self._total = np.empty_like(self.theta) if apart else centre.gradient
        self._outgoing = device.outgoing(self._total, centre.gradient)
        self.rule = self.options.rounds(self.theta, self._total, device.fast)

    def next_work(self) -> Claimed | None:
        """Samples from the master, once Θ includes the last gradient."""
        claimed = self.centre.claim()
        return claimed if claimed.works else None

    def advance(self, work: Claimed) -> None:
        """Compute a round of gradients, and push the result."""
        told = self.round(work)
        self._outgoing.finish()
        self.centre.push(self.centre.pieces[0], self.centre.gradient, told)

    def pull(self) -> int:
        """Fetch Θ_j; returns j."""
        index = self.centre.read(self.centre.pieces[0], self._read)
        if self._read is not self.theta:
            self.session.device.upload(self.theta, self._read, steady=True)
        return index

    def round(self, claimed: Claimed) -> Gradient:
        """Compute one round from Θ_j, with its result in `centre.gradient`; returns the message that announces it."""
        index, (work,) = self.pull(), claimed.works
        rule, samples, loss = self.rule, 0, 0.0
        rule.begin()
        minibatches = list(work.minibatches())
        self.session.learner.expect(minibatches)
        for number, minibatch in enumerate(minibatches, start=1):
            last = number == len(minibatches)
            target = rule.target(self.gradient, number == 1)
            step, known = partial(self._step, target, claimed.learning_rate, number == 1, last), last
            loss += self.session.learner.gradient(rule.local.at, target, minibatch, step) * minibatch.count
            rule.stepped()
            samples += minibatch.count
            self.transport.heartbeat()
            if last or self.session.stop.flag or self.centre.asked_for(ready=number == self.options.period):
                break
        if not known:  # the round was ended after a minibatch that was not known to be the last
            rule.end()
            self._outgoing.start(slice(0, self._total.size))
        return Gradient(index, replace(work, count=samples), number, loss)

    def _step(self, g: Array, learning_rate: float, first: bool, last: bool, part: slice) -> None:
        """Take a step on a part whose gradient has just been computed, while it is in cache."""
        for b in block_slices(part, block_of(g)):
            self.rule.step(b, g[b], learning_rate, first, last)
        if last:
            self._outgoing.start(part)
