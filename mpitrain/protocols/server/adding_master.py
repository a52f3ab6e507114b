"""The master of a centre that only adds: it counts, evaluates and saves while the workers exchange with the centre.

With one process it is the same training without messages.
"""

from collections.abc import Callable

from mpitrain.checkpoint import coordination
from mpitrain.checkpoint.coordination import Copies
from mpitrain.protocols import messages
from mpitrain.protocols.messages import FromMaster, FromWorker, PeriodLosses, Report
from mpitrain.protocols.server.adding import AddingWorker, take_up
from mpitrain.protocols.server.by_messages import LocalCentre
from mpitrain.protocols.server.interface import Centre, Source
from mpitrain.protocols.server.link import MasterLink
from mpitrain.protocols.server.master import Master
from mpitrain.sampling.queue import Queue, Work, to_rows
from mpitrain.training.context import Session


class AddingMaster(Master):
    """Serves the workers of a centre. `queue` is the queue at the start; the centre knows the place in it now."""

    def __init__(self, session: Session, centre: Centre, workers: list[int], queue: Queue) -> None:
        super().__init__(session, centre, workers)
        self.queue = queue
        self._unused: dict[int, tuple[Work, ...]] = {}  # samples that workers were given and have not trained on
        self._sizes: dict[int, int] = {}  # bytes of the pieces that workers have copied
        self._saving = False
        if centre.untrained() is not None:
            session.outstanding = self._untrained

    def serve(self) -> None:
        super().serve()
        self.tell_all(messages.Leave())
        self.refresh()
        self.state.queue.returned += self._outstanding()

    def handle(self, sender: int, message: FromWorker) -> None:
        match message:
            case Report(samples, loss, exchanges):
                self.centre.trained(sender, samples)
                self.counters.trained(samples, loss)
                self.counters.updated(count=exchanges)
                self.state.index += exchanges
            case PeriodLosses(minibatches, loss):
                self.state.rate.observe(loss, minibatches)
                self.tell(sender, messages.Falls(self.state.rate.falls))
            case messages.Copied(nbytes, unused) if self._saving:
                self._unused[sender], self._sizes[sender] = unused, nbytes
            case messages.Done(unused):
                self._unused[sender] = unused
                self.finished.add(sender)
            case _:
                super().handle(sender, message)

    def _outstanding(self) -> list[Work]:
        """The unused samples in the workers' newest lists; right if no worker has claimed or used any since."""
        return [work for worker in sorted(self._unused) for work in self._unused[worker]]

    def _untrained(self) -> list[Work]:
        """Bring the state up to date; returns the samples that workers have claimed and that no move in x̃ is of."""
        self.refresh()
        return self.centre.untrained() or []

    def refresh(self) -> None:
        """Bring the state up to what x̃ and the queue are now."""
        self.centre.copy(self.state.theta)
        self.state.trained = self.counters.trained_all
        self.state.queue = self.queue.after(self.centre.place())
        self.state.local_numbers["again"] = to_rows(self.state.queue.returned)

    def save(self) -> None:
        """Start a checkpoint of a moment when nothing moves: all workers copy their pieces between two minibatches and
        wait; the master copies its own and lets all go on, and threads write the copies."""
        self._sizes, self._saving = {}, True
        self.tell_all(messages.Save())
        pieces = "the workers' pieces of a checkpoint"
        self.transport.until(lambda: len(self._sizes) == len(self.workers), pieces, self.workers, self.turn)
        self._saving = False
        self.refresh()
        saver, state = self.session.saver, self.state
        assert saver is not None
        own, whole = saver.copy_own(state), saver.copy_state(state, self._outstanding())
        sizes = self._sizes | ({} if own is None else {self.transport.rank: own.nbytes})
        copies = Copies(own, whole, sizes)
        name = coordination.begin(saver, state.trained, copies)
        self.tell_all(messages.Resume(name))
        coordination.write(saver, name, self.transport.rank, copies)


def add_alone(session: Session) -> None:
    """Train with a centre that only adds, and its one worker, in one process: without messages."""
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
