"""Rank 0 of the asynchronous elastic algorithms: it counts, evaluates and saves while the workers go on."""

from typing import Any

from mpitrain.errors import WireError
from mpitrain.protocols.collection import Collection
from mpitrain.protocols.elastic_centre import MastersCentre
from mpitrain.protocols.orders import TO_MASTER, TO_WORKER
from mpitrain.protocols.wire import Kind, Note, unpack
from mpitrain.sampling.assignments import Unused
from mpitrain.sampling.supply import Supply
from mpitrain.training.context import Session

PATIENCE = 4e-3  # seconds; a rank that holds a window enters MPI every 5 ms, so that others can use it


class Master:
    """Rank 0: counts, evaluates, saves, passes on a wish to stop, and serves the centre where that takes messages."""

    def __init__(self, session: Session, centre: MastersCentre, workers: list[int], supply: Supply) -> None:
        self.session, self.centre, self.workers, self.supply = session, centre, workers, supply
        self.transport, self.state, self.monitor = session.transport, session.state, session.monitor
        self._before = session.state.trained
        self._done: set[int] = set()
        self._stopping = self._told = False
        self._unused = Unused()
        self._collection: Collection | None = None
        self.monitor.refresh = self.refresh
        if session.saver is not None:
            self.monitor.save = lambda outstanding: self._save()

    def serve(self) -> None:
        """Until every worker has finished."""
        backoff = self.transport.backoff("any worker", self.workers)
        while len(self._done) < len(self.workers):
            busy = self._turn() | self.monitor.turn(self.state)
            self.transport.heartbeat(busy)
            if busy:
                backoff.reset()
            else:
                self._idle(backoff)
        self._post(Note(Kind.STOP, stopping=1))
        self.refresh()
        self.state.assignments.returned += self._unused.ranges

    def _idle(self, backoff: Any) -> None:
        """Sleep until a note waits. Where workers serve themselves, seldom looking: they need the cores."""
        if not self.centre.patient:
            backoff.pause()
            return
        for _ in range(10):
            self.transport.sleep(PATIENCE)
            if self.transport.waiting(TO_MASTER):
                return

    def refresh(self) -> None:
        """Bring the state up to what x̃ and the supply are now."""
        place = self.centre.place()
        self.centre.copy(self.state.theta)
        self.state.trained = self._before + self.monitor.trained_now
        self.state.assignments.position = self.supply.position(place)
        again = self.supply.returned(place)
        self.state.assignments.returned = again
        self.state.local_numbers["again"] = [[w.epoch, w.start, w.count, w.minibatch] for w in again]

    def _turn(self) -> bool:
        busy = False
        while (message := self.transport.poll(TO_MASTER)) is not None:
            self._take(message[0], unpack(message[1], message[0]))
            busy = True
        busy |= self.centre.serve()
        if (self._stopping or self.session.stop.flag) and not self._told:
            self._told = True
            self._post(Note(Kind.STOP))
        return busy

    def _take(self, sender: int, note: Note) -> None:
        if sender not in self.workers:
            raise WireError(f"rank {sender} is no worker of this master")
        self._stopping |= bool(note.stopping)
        self.monitor.traffic[sender] = note.traffic
        if self.centre.take(sender, note):
            return
        match note.kind:
            case Kind.REPORT:
                self.monitor.trained(note.count, note.loss)
                self.monitor.updated(count=note.index)
                self.state.index += note.index
            case Kind.REST:
                self._unused.name(sender, note.work)
            case Kind.COPIED if self._collection is not None:
                self._unused.close(sender)
                self._collection.copied(sender, note.nbytes)
            case Kind.DONE:
                self._unused.close(sender)
                self._done.add(sender)
            case _:
                raise WireError(f"rank {sender} sent a note of kind {note.kind}, which no worker sends")

    def _save(self) -> None:
        """Start a checkpoint of a moment when nothing moves: all workers wait between two minibatches."""
        self._collection = Collection(self.session, self.workers, TO_WORKER)
        backoff = self.transport.backoff("the workers' pieces of a checkpoint", self.workers)
        while not self._collection.complete:
            if self._turn():
                backoff.reset()
            else:
                backoff.pause()
        self.refresh()
        collection, self._collection = self._collection, None
        collection.release(self.state, self._unused.ranges)
        self._heard = dict.fromkeys(self.workers, self.transport.waking())  # they were silent while they waited

    def _post(self, note: Note) -> None:
        for worker in self.workers:
            self.transport.post(worker, TO_WORKER, note.pack())
