"""A centre and its one worker in one process: the same rounds without messages."""

from collections.abc import Callable

from mpitrain.protocols.messages import FromMaster, FromWorker, PeriodLosses, Report
from mpitrain.protocols.server.adding import AddingWorker, take_up
from mpitrain.protocols.server.adding_master import AddingMaster
from mpitrain.protocols.server.interface import Source
from mpitrain.protocols.server.link import Line
from mpitrain.protocols.server.merging import MergingWorker
from mpitrain.protocols.server.own import OwnCentre, OwnMerged
from mpitrain.sampling.queue import Queue
from mpitrain.training.context import Session
from mpitrain.training.loop import Trainer


def merging(session: Session) -> None:
    """Train with a centre that gradients are merged into."""
    session.state.to_device(session.device.to_device)
    trainer = Trainer(session)
    trainer.all_wait = True

    def due() -> None:
        session.monitor.turn(trainer)

    MergingWorker(session, OwnMerged(session, due)).train()


def adding(session: Session) -> None:
    """Train with a centre that only adds."""
    line = _OwnLine(session)
    worker = AddingWorker(session, line, 0, session.members)
    queue, _ = take_up(session, worker)
    theta = session.state.theta
    options = session.config.algorithm
    source = Source(queue, session.schedule, options.period, options.group)
    centre = OwnCentre(theta.size, theta.dtype, source, session.device)
    centre.put(theta)
    line.master_here = _Master(session, centre, worker, queue)
    worker.report_every = 0.0
    worker.run(centre)
    line.master_here.refresh()


class _OwnLine(Line):
    """From a worker to the master in the same process."""

    master_here: "_Master"

    def __init__(self, session: Session) -> None:
        super().__init__(session, session.members[0])
        self.over = True

    def tell(self, message: FromWorker) -> None:
        if isinstance(message, Report):
            self.master_here.heed(self.master, message)
            self.session.monitor.turn(self.master_here)
        if isinstance(message, PeriodLosses):
            self.master_here.heed(self.master, message)

    def look(self) -> bool:
        self.stopping = self.session.stop.flag
        return False

    def until(self, condition: Callable[[], bool], what: str) -> None:
        assert condition(), what


class _Master(AddingMaster):
    """Counts, evaluates and saves, the worker's own vectors as well."""

    all_wait = True

    def __init__(self, session: Session, centre: OwnCentre, worker: AddingWorker, queue: Queue) -> None:
        super().__init__(session, centre, [], queue)
        self.worker = worker

    def tell(self, worker: int, message: FromMaster) -> None:
        """The worker sees the common rate where this one has it."""

    def refresh(self) -> None:
        super().refresh()
        self.worker.note_numbers()
        self.state.queue.returned += self.worker.unused

    def save(self) -> None:
        self.refresh()
        self.session.save_together()
