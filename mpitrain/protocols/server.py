"""The parameter server: rank 0 applies what the workers send (Zhang 2013, Algorithm 2; Chan & Lane 2014, Algorithm 1).

A worker's round: pull Θ_j; take n minibatches, stepping its own θ; when `until_free`, say so and compute on until the
server grants; hand over the plain sum of its gradients with j; wait for the next work, which comes once Θ includes it.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from mpitrain.errors import WireError
from mpitrain.protocols.centre import Centre, choose, open_centre
from mpitrain.protocols.server_updates import Updates
from mpitrain.protocols.server_vectors import Vectors
from mpitrain.protocols.server_worker import alone, work
from mpitrain.protocols.wire import TO_SERVER, TO_WORKER, Kind, Note, unpack
from mpitrain.sampling.assignments import Work
from mpitrain.training.context import Session


def run(session: Session) -> None:
    """Train until all samples are served or a stop is asked for. Collective over all members."""
    master, *workers = session.members
    transport, state = session.transport, session.state
    if transport.rank == master:
        state.place(session.device)
    if not workers:
        alone(session)
        return
    vectors = transport.local_size * state.theta.nbytes  # Θ, and every worker's gradient
    how = choose(transport, session.config.run.exchange, session.device.direct, vectors)
    session.say_exchange(how)
    centre = open_centre(transport, how, state.theta.size, state.theta.dtype, master, session.device)
    if transport.rank == master:
        _lay_out(centre, session)
    transport.barrier("the start")
    if transport.rank == master:
        Server(session, centre, workers).serve()
    else:
        work(session, centre, master, workers.index(transport.rank))
    transport.flush()
    transport.barrier("the end")
    if state.theta is centre.theta:
        state.theta = centre.theta.copy()
    centre.close()


def _lay_out(centre: Centre, session: Session) -> None:
    """Show Θ where workers read it. It is updated there, unless a GPU keeps it and shows a copy in host memory."""
    state = session.state
    with centre.writing(state.index):
        if type(centre.theta) is not type(state.theta):
            session.device.download(state.theta, centre.theta)
            return
        np.copyto(centre.theta, state.theta)
    state.theta = centre.theta


class Server:
    """Rank 0's loop: takes notes, applies gradients, grants, dispenses samples, and evaluates when nothing waits."""

    def __init__(self, session: Session, centre: Centre, workers: list[int]) -> None:
        self.session, self.centre, self.workers = session, centre, workers
        self.transport, self.state, self.monitor = session.transport, session.state, session.monitor
        self.updates, self.vectors = Updates(session), Vectors(session, centre)
        self.options = self.updates.options
        self.in_order = self.options.order == "round-robin"
        self.assigned: dict[int, Work] = {}
        self.ready: list[int] = []
        self.gradients: dict[int, Note] = {}  # arrived, not yet applied
        self.hello: set[int] = set()
        self.pulling: int | None = None  # in round-robin order: who must have Θ before the next update
        self.stopped: set[int] = set()
        self._told = False
        self.turn = 0
        self.monitor.outstanding = lambda: list(self.assigned.values())

    def serve(self) -> None:
        """Until every worker has been told to stop."""
        backoff = self.transport.backoff("any worker", self.workers)
        while len(self.stopped) < len(self.workers):
            busy = self.take_notes()
            busy |= self.apply_one()
            if not self.gradients:
                busy |= self.grant()
            busy |= self.greet()
            busy |= self.vectors.answer()
            busy |= self.monitor.turn(self.state, punctual=self.in_order)
            self.transport.heartbeat(busy)
            if busy:
                backoff.reset()
            else:
                self._idle(backoff)
        self.vectors.finish()

    def _idle(self, backoff: Any) -> None:
        """Sleep until a note waits, with as little work between as there can be: the workers need the cores."""
        for _ in range(1 if self.vectors.asked else 50):
            backoff.pause()
            if self.transport.waiting(TO_SERVER):
                return

    # ---- what arrives

    def take_notes(self) -> bool:
        """Sort the waiting notes by what they ask."""
        taken = False
        while (message := self.transport.poll(TO_SERVER)) is not None:
            sender, note = message[0], unpack(message[1], message[0])
            if sender not in self.workers:
                raise WireError(f"rank {sender} is no worker of this server")
            self.session.stop.flag |= bool(note.stopping)
            self.monitor.traffic[sender] = note.traffic
            taken = True
            match note.kind:
                case Kind.HELLO:
                    self.hello.add(sender)
                case Kind.READY:
                    self.ready.append(sender)
                case Kind.GRADIENT:
                    self.gradients[sender] = note
                case Kind.PULL:
                    self.vectors.asked.append(sender)
                case Kind.PULLED:
                    self.pulling = None if self.pulling == sender else self.pulling
                case _:
                    raise WireError(f"rank {sender} sent a note of kind {note.kind}, which no worker sends")
        return taken

    # ---- what is done about it

    def apply_one(self) -> bool:
        """Apply the next gradient: the oldest, or in round-robin order the one whose turn it is."""
        if not self.gradients or self.pulling is not None or (self.in_order and self._missing()):
            return False
        worker = self._whose_turn() if self.in_order else next(iter(self.gradients))
        if worker is None or worker not in self.gradients:
            return False
        began = self.session.clock()
        note = self.gradients.pop(worker)
        self._check(note, worker)
        gradient = self.vectors.gradient(worker, note)
        if accepted := self.updates.accepts(gradient, note, worker):
            with self.centre.writing(self.state.index + 1):
                self.updates.apply(gradient, note, worker)
                self.vectors.show()
        given = self.assigned.pop(worker)
        self.state.assignments.give_back(given.rest(note.count))
        self.monitor.trained(*(note.count, note.loss) if accepted else (0, 0.0), self.session.clock() - began)
        self._assign(worker)
        return True

    def grant(self) -> bool:
        """Tell those who wait with enough minibatches to hand over; everybody, once, when the end is wished for."""
        granted, self.ready = self.ready, []
        if self.session.stop.flag and not self._told:
            self._told, granted = True, self.workers
        for worker in granted:
            if worker in self.assigned and worker not in self.gradients:
                self.transport.post(worker, TO_WORKER, Note(Kind.GRANT).pack())
        return bool(granted)

    def greet(self) -> bool:
        """Give work to those who have none: at the start, and when their stage begins."""
        greeted = [worker for worker in self.workers if worker in self.hello and self._may_enter(worker)]
        for worker in greeted[:1] if self.in_order else greeted:
            self.hello.discard(worker)
            self._assign(worker)
        return bool(greeted)

    def _may_enter(self, worker: int) -> bool:
        """In round-robin order the workers enter one by one, each once its forerunner has Θ."""
        missing = self._missing() if self.in_order else []
        return worker not in missing or (worker == missing[0] and self.pulling is None)

    def _missing(self) -> list[int]:
        """The workers of this stage that have no work although there is some."""
        if self.state.assignments.exhausted or self.session.stop.flag:
            return []
        active = self.workers[: self.session.schedule.at(self.state.assignments.position).workers]
        return [worker for worker in active if worker not in self.assigned and worker not in self.stopped]

    def _whose_turn(self) -> int | None:
        for step in range(len(self.workers)):
            worker = self.workers[(self.turn + step) % len(self.workers)]
            if worker in self.assigned:
                if worker in self.gradients:
                    self.turn = (self.turn + step + 1) % len(self.workers)
                return worker
        return None

    def _assign(self, worker: int) -> None:
        settings = self.session.schedule.at(self.state.assignments.position)
        number = self.workers.index(worker)
        if settings.workers is not None and number >= settings.workers and not self._over():
            self.transport.post(worker, TO_WORKER, Note(Kind.WAIT).pack())
            return
        work = None
        if not self.session.stop.flag:
            left = self.session.schedule.until_change(self.state.assignments.position)
            work = self.state.assignments.next(settings.minibatch, self.options.most, left)
        if work is None:
            if self._over() or self.session.stop.flag:
                self.stopped.add(worker)
                self.transport.post(worker, TO_WORKER, Note(Kind.STOP).pack())
            else:  # others may give ranges back
                self.transport.post(worker, TO_WORKER, Note(Kind.WAIT).pack())
            return
        self.assigned[worker] = work
        note = Note(Kind.WORK, self.state.index, work.epoch, work.start, work.count, work.minibatch)
        self.transport.post(worker, TO_WORKER, replace(note, learning_rate=settings.learning_rate).pack())
        if self.in_order:
            self.pulling = worker

    def _over(self) -> bool:
        return self.state.assignments.exhausted and not (self.assigned and self.options.computes_on)

    def _check(self, note: Note, worker: int) -> None:
        given = self.assigned.get(worker)
        if given is None or (note.epoch, note.start) != (given.epoch, given.start) or note.count > given.count:
            raise WireError(f"rank {worker} sent a gradient over samples it was not given")
