"""The loop of ranks that take every step together."""

import math

from mpitrain.errors import TrainingFailed
from mpitrain.sampling.assignments import Work
from mpitrain.training.context import Session
from mpitrain.training.trainer import Trainer


class Together(Trainer):
    """One rank's part: all members take their shares of one minibatch after another.

    A protocol gives the `step`, which sets `stopping` on all ranks once some rank was told to stop.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.state, self.ranks = session.state, session.members
        self.part = self.ranks.index(session.transport.rank)
        self.stopping = False

    def step(self, work: Work) -> float:
        """One update; the minibatch's mean loss over all ranks."""
        raise NotImplementedError

    def turn(self) -> None:
        """What is due after a step."""
        self.session.monitor.turn(self, whole=True)

    def train(self) -> None:
        """Until all samples are served, or some rank was told to stop."""
        counters = self.session.counters
        while not self.stopping and (work := self.next_work()) is not None:
            loss = self.step(work)
            if not math.isfinite(loss):
                raise TrainingFailed(
                    f"the loss is no longer finite at update {self.state.index}; a smaller training.learning_rate "
                    "may help"
                )
            counters.trained(work.count, loss * work.count)
            counters.updated()
            self.turn()
            self.session.transport.heartbeat()

    def next_work(self) -> Work | None:
        """The next minibatch of all ranks, of one epoch and one stage; the one after it is read ahead."""
        assignments, schedule = self.state.assignments, self.session.schedule
        self.eta = schedule.at(assignments.position).learning_rate
        work = assignments.next(self._minibatch(), 1, schedule.until_change(assignments.position))
        if work is not None:
            following = assignments.peek(self._minibatch(), schedule.until_change(assignments.position))
            self.session.learner.expect(each.share(self.part, len(self.ranks)) for each in (work, following) if each)
        return work

    def _minibatch(self) -> int:
        """Samples of a minibatch of all ranks at this point of the training."""
        settings = self.session.schedule.at(self.state.assignments.position)
        return self.session.config.algorithm.samples_of_step(settings.minibatch, len(self.ranks))
