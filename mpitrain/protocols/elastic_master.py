"""Rank 0 of the asynchronous elastic algorithms: it counts, evaluates and saves while the workers go on."""

from mpitrain.errors import WireError
from mpitrain.protocols.collection import Collection
from mpitrain.protocols.elastic_centre import MastersCentre
from mpitrain.protocols.messages import (
    TO_MASTER,
    TO_WORKER,
    Copied,
    Done,
    Envelope,
    Finish,
    FromWorker,
    Leave,
    Report,
    Unused,
)
from mpitrain.sampling.queue import Queue
from mpitrain.sampling.queue import Unused as UnusedRanges
from mpitrain.training.context import Session
from mpitrain.training.trainer import Trainer

PATIENCE = 4e-3  # seconds; a rank that holds a window enters MPI every 5 ms, so that others can use it
IDLE_LOOKS = 10  # of a master for which there is nothing to do


class Master(Trainer):
    """Rank 0: counts, evaluates, saves, passes on a wish to stop, and serves the centre where that takes messages."""

    def __init__(self, session: Session, centre: MastersCentre, workers: list[int], queue: Queue) -> None:
        super().__init__(session)
        self.centre, self.workers, self.queue = centre, workers, queue
        self.transport, self.state, self.counters = session.transport, session.state, session.counters
        self._done: set[int] = set()
        self._stopping = self._told = False
        self._idle_looks = 0
        self._unused = UnusedRanges()
        self._collection: Collection | None = None

    def serve(self) -> None:
        """Until every worker has finished."""
        nap = PATIENCE if self.centre.patient else None
        self.transport.until(
            lambda: len(self._done) == len(self.workers), "any worker", self.workers, self._attend, nap
        )
        self._post(Leave())
        self.refresh()
        self.state.queue.returned += self._unused.ranges

    def _attend(self) -> bool:
        """Do what is due; whether there was anything. Where workers serve themselves, little is done for some looks
        after a turn without, unless a message waits: they need the cores."""
        if self._idle_looks and not self.transport.waiting(TO_MASTER.tag):
            self._idle_looks -= 1
            return False
        busy = self._turn() | self.session.monitor.turn(self)
        self.transport.heartbeat(busy)
        self._idle_looks = IDLE_LOOKS if self.centre.patient and not busy else 0
        return busy

    def refresh(self) -> None:
        """Bring the state up to what x̃ and the queue are now."""
        place = self.centre.place()
        self.centre.copy(self.state.theta)
        self.state.trained = self.counters.trained_all
        self.state.queue = self.queue.after(place)
        again = self.state.queue.returned
        self.state.local_numbers["again"] = [[w.epoch, w.start, w.count, w.minibatch] for w in again]

    def _turn(self) -> bool:
        busy = False
        while (arrived := TO_MASTER.poll(self.transport)) is not None:
            self._take(*arrived)
            busy = True
        busy |= self.centre.serve()
        if (self._stopping or self.session.stop.flag) and not self._told:
            self._told = True
            self._post(Finish())
        return busy

    def _take(self, sender: int, envelope: Envelope[FromWorker]) -> None:
        if sender not in self.workers:
            raise WireError(f"rank {sender} is no worker of this master")
        self._stopping |= envelope.stopping
        self.counters.exchanged(sender, envelope.traffic)
        if self.centre.take(sender, envelope.message):
            return
        match envelope.message:
            case Report(samples, loss, _, exchanges):
                self.counters.trained(samples, loss)
                self.counters.updated(count=exchanges)
                self.state.index += exchanges
            case Unused(work):
                self._unused.name(sender, work)
            case Copied(nbytes) if self._collection is not None:
                self._unused.close(sender)
                self._collection.copied(sender, nbytes)
            case Done():
                self._unused.close(sender)
                self._done.add(sender)
            case unexpected:
                raise WireError(f"rank {sender} sent {unexpected}, which was not due")

    def save(self) -> None:
        """Start a checkpoint of a moment when nothing moves: all workers wait between two minibatches."""
        collection = self._collection = Collection(self.session, self.workers)
        pieces = "the workers' pieces of a checkpoint"
        self.transport.until(lambda: collection.complete, pieces, self.workers, self._turn)
        self.refresh()
        self._collection = None
        collection.release(self.state, self._unused.ranges)

    def _post(self, message: Finish | Leave) -> None:
        for worker in self.workers:
            TO_WORKER.post(self.transport, worker, message)
