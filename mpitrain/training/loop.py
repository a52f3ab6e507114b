"""The training loop of a rank, and that of ranks that take every step together."""

import math
from typing import Generic, TypeVar

from mpitrain.checkpoint import coordination
from mpitrain.errors import TrainingFailed
from mpitrain.sampling.queue import Work
from mpitrain.training.context import Session

Piece = TypeVar("Piece")


def require_finite(loss: float, when: str, rank: int | None = None, keys: str = "training.learning_rate") -> None:
    """Raise TrainingFailed unless the loss is finite, naming the rank whose loss it is and the keys to lower."""
    if not math.isfinite(loss):
        whose = "" if rank is None else f"rank {rank}: "
        raise TrainingFailed(f"{whose}the loss is no longer finite {when}; a smaller {keys} may help")


def warn(session: Session, workers: int) -> None:
    """Warn, on the first member, of what may not converge with this many workers."""
    if session.transport.rank != session.members[0]:
        return
    settings = session.schedule.fastest
    for line, numbers in session.config.algorithm.warnings(settings.learning_rate, settings.workers or workers):
        session.journal.warn(line, **numbers)


class Trainer:
    """A protocol's training as the monitor sees it. This one's state is always up to date, and its master saves alone;
    protocols override what differs."""

    all_wait = punctual = False  # see `monitoring.evaluations.Subject`
    saves = True

    def __init__(self, session: Session) -> None:
        self.session = session

    def refresh(self) -> None:
        """Bring the session's state up to date before it is evaluated."""

    def save(self) -> None:
        """Start a checkpoint of the session's state, with the work that was handed out and is not yet done."""
        saver, outstanding = self.session.saver, self.session.outstanding
        assert saver is not None
        coordination.save_state(saver, self.session.state, outstanding() if outstanding is not None else [])


class Loop(Trainer, Generic[Piece]):
    """A rank's loop: one piece of work after another, and after each what is due.

    A protocol implements the methods below; any of them sets `stopping` once the rank is to train no more.
    """

    stopping = False

    def next_work(self) -> Piece | None:
        """The next piece of work; None when there is no more."""
        raise NotImplementedError

    def advance(self, work: Piece) -> None:
        """Train on a piece of work."""
        raise NotImplementedError

    def attend(self) -> None:
        """Do what is due between two pieces of work: messages, reports, evaluations, checkpoints."""

    def train(self) -> None:
        """Train until there is no more work, or the rank was told to stop."""
        while not self.stopping and (work := self.next_work()) is not None:
            self.advance(work)
            self.attend()
            self.session.transport.heartbeat()


class Together(Loop[Work]):
    """The loop of members that take their shares of one minibatch after another.

    A protocol implements `step`, which sets `stopping` on all ranks once some rank was told to stop.
    """

    all_wait = True

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.state, self.ranks = session.state, session.members
        self.part = self.ranks.index(session.transport.rank)

    def step(self, work: Work) -> float:
        """Make one update; returns the minibatch's mean loss over all ranks."""
        raise NotImplementedError

    def attend(self) -> None:
        """Evaluate, record and save what is due after a step."""
        self.session.monitor.turn(self)

    def advance(self, work: Work) -> None:
        """Take a step, and count its loss."""
        loss = self.step(work)
        if self.session.config.run.gradient_statistics and len(self.ranks) > 1:
            self.session.figures.gather(self.session.transport)
        require_finite(loss, f"at update {self.state.index}")
        self.state.rate.observe(loss)
        self.session.counters.trained(work.count, loss * work.count)
        self.session.counters.updated()

    def next_work(self) -> Work | None:
        """The next minibatch of all ranks, of one epoch and one stage; the one after it is read ahead."""
        queue = self.state.queue
        self.settings = self.session.schedule.at(queue.position_at())
        self.learning_rate = self.state.rate(self.settings.learning_rate)
        work = queue.next(*self._limits())
        if work is not None:
            following = queue.at(0, *self._limits())
            self.session.learner.expect(each.share(self.part, len(self.ranks)) for each in (work, following) if each)
        return work

    def _limits(self) -> tuple[int, int, int]:
        """Of what is handed out next: the samples of a minibatch of all ranks, one minibatch, and the samples of the
        stage that are left."""
        schedule, position = self.session.schedule, self.state.queue.position_at()
        minibatch = self.session.config.algorithm.samples_of_step(schedule.at(position).minibatch, len(self.ranks))
        return minibatch, 1, schedule.until_change(position)
