"""A centre and its one worker in one process: the same training without messages."""

from collections.abc import Callable
from functools import partial

from mpitrain.protocols.messages import FromMaster, FromWorker, PeriodLosses, Report
from mpitrain.protocols.server.adding import AddingWorker, take_up
from mpitrain.protocols.server.adding_master import AddingMaster
from mpitrain.protocols.server.by_messages import LocalCentre
from mpitrain.protocols.server.interface import Source
from mpitrain.protocols.server.link import MasterLink
from mpitrain.protocols.server.merged import OwnMerged
from mpitrain.protocols.server.merging import MergingWorker
from mpitrain.sampling.queue import Queue
from mpitrain.training.context import Session
from mpitrain.training.loop import Trainer


def merging(session: Session) -> None:
    """Train with a centre that gradients are merged into."""
    session.state.to_device(session.device.to_device)
    trainer = Trainer(session)
    trainer.all_wait = True
    MergingWorker(session, OwnMerged(session, partial(session.monitor.turn, trainer))).train()


def adding(session: Session) -> None:
    """Train with a centre that only adds."""
    link = OwnLink(session, session.members[0])
    worker = AddingWorker(session, link, 0, session.members)
    queue, *_ = take_up(session, worker)
    source = Source(queue, session.schedule, worker.options.period, worker.options.samples_of_chunks)
    centre = LocalCentre(session.state.theta, source, session.device)
    centre.put(session.state.theta)
    link.master_here = OwnMaster(session, centre, worker, queue)
    worker.report_every = 0.0
    worker.run(centre)
    link.master_here.refresh()


class OwnLink(MasterLink):
    """A worker's link to the master in the same process."""

    master_here: "OwnMaster"

    def __init__(self, session: Session, master: int) -> None:
        super().__init__(session, master)
        self.over = True

    def tell(self, message: FromWorker) -> None:
        if isinstance(message, Report | PeriodLosses):
            self.master_here.handle(self.master, message)
        if isinstance(message, Report):
            self.session.monitor.turn(self.master_here)

    def poll(self) -> bool:
        self.stopping = self.session.stop.flag
        return False

    def until(self, condition: Callable[[], bool], what: str) -> None:
        assert condition(), what


class OwnMaster(AddingMaster):
    """The master, which also saves the worker's own vectors."""

    all_wait = True

    def __init__(self, session: Session, centre: LocalCentre, worker: AddingWorker, queue: Queue) -> None:
        super().__init__(session, centre, [], queue)
        self.worker = worker

    def tell(self, worker: int, message: FromMaster) -> None:
        """Send nothing: the worker has the same common rate object."""

    def refresh(self) -> None:
        super().refresh()
        self.worker.note_numbers()
        self.state.queue.returned += self.worker.unused

    def save(self) -> None:
        self.refresh()
        self.session.save_together()
