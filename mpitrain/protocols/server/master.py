"""The loop of a master: it takes its workers' messages, counts, evaluates, saves, and passes on a stop request."""

from mpitrain.errors import WireError
from mpitrain.protocols.messages import TO_MASTER, TO_WORKER, Finish, FromMaster, FromWorker, Given, StopRequest
from mpitrain.protocols.server.interface import Centre
from mpitrain.training.context import Session
from mpitrain.training.loop import Trainer


class Master(Trainer):
    """Rank 0's loop. Subclasses handle their workers' messages (`handle`) and do what else is due (`work`)."""

    def __init__(self, session: Session, centre: Centre, workers: list[int]) -> None:
        super().__init__(session)
        self.centre, self.workers, self._senders = centre, workers, frozenset(workers)
        self.transport, self.state, self.counters = session.transport, session.state, session.counters
        self.finished: set[int] = set()  # workers who train no more
        self._told = False
        self._polls_to_skip = 0

    def serve(self) -> None:
        """Serve the workers until each has finished."""
        polls = self._attend, self.centre.poll_interval
        self.transport.until(lambda: len(self.finished) == len(self.workers), "any worker", self.workers, *polls)

    def handle(self, sender: int, message: FromWorker) -> None:
        """Do what a worker's message asks for. Raises WireError naming the worker if the message was not due."""
        if isinstance(message, Given):
            self.counters.figures.add(sender, message.amounts)
            return
        raise WireError(f"rank {sender} sent {message}, which was not due")

    def work(self) -> bool:
        """Do for the workers what is due; returns whether anything was."""
        return False

    def tell(self, worker: int, message: FromMaster) -> None:
        """Send a message to a worker."""
        TO_WORKER.post(self.transport, worker, message)

    def tell_all(self, message: FromMaster) -> None:
        """Send a message to every worker."""
        for worker in self.workers:
            self.tell(worker, message)

    def _attend(self) -> bool:
        """Do what is due; returns whether anything was. If nothing was, the next polls only look for a message, so that
        the workers have the cores."""
        if self._polls_to_skip and not self.transport.waiting(TO_MASTER.tag):
            self._polls_to_skip -= 1
            return False
        busy = self.turn() | self.session.monitor.turn(self)
        self.transport.heartbeat(busy)
        self._polls_to_skip = 0 if busy else self.centre.polls_when_idle
        return busy

    def turn(self) -> bool:
        """Take what has come, and serve the workers; returns whether there was anything to do."""
        busy = False
        while (arrived := TO_MASTER.poll(self.transport)) is not None:
            sender, envelope = arrived
            if sender not in self._senders:
                raise WireError(f"rank {sender} is no worker of this master")
            self.session.stop.flag |= envelope.stopping
            self.counters.traffic[sender] = envelope.traffic
            if not (isinstance(envelope.message, StopRequest) or self.centre.handle(sender, envelope.message)):
                self.handle(sender, envelope.message)
            busy = True
        busy |= self.work()
        busy |= self.centre.serve()
        if self.session.stop.flag and not self._told:
            self._told = True
            for worker in self.workers:
                if worker not in self.finished:  # one that has finished may be gone, and never take the message
                    self.tell(worker, Finish())
        return busy
