"""The parameter server: rank 0 applies what the workers send (Zhang 2013, Algorithm 2; Chan & Lane 2014, Algorithm 1).

A worker's round: pull Θ_j; take n minibatches, stepping its own θ; when `until_free`, say so and compute on until the
server grants; hand over the plain sum of its gradients with j; wait for the next work, which comes once Θ includes it.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mpitrain.algorithms import Asgd
from mpitrain.assignments import Work
from mpitrain.errors import Overdue, TrainingFailed
from mpitrain.flat import Array, blocks
from mpitrain.protocols.centre import Centre, choose, open_centre
from mpitrain.protocols.server_rules import rule_of
from mpitrain.protocols.wire import Kind, Note, WireError, checksum, unpack
from mpitrain.rules.server import decay
from mpitrain.rules.sgd import sgd
from mpitrain.session import Session

TO_SERVER, TO_WORKER, VECTOR = 1, 2, 3  # message tags


def run(session: Session) -> None:
    """Train until all samples are served or a stop is asked for. Collective over all members."""
    master, *workers = session.members
    if not workers:
        _alone(session)
        return
    transport, state = session.transport, session.state
    how = choose(transport, session.config.run.exchange)
    session.say_exchange(how)
    centre = open_centre(transport, how, state.theta.size, state.theta.dtype, master)
    if transport.rank == master:
        _place(centre, state)
    transport.barrier("the start")
    if transport.rank == master:
        Server(session, centre, workers).serve()
    else:
        work(session, centre, master, workers.index(transport.rank))
    transport.flush()
    transport.barrier("the end")
    if transport.rank == master:
        state.theta = centre.theta.copy()
    centre.close()


def _place(centre: Centre, state: Any) -> None:
    with centre.writing(state.index):
        np.copyto(centre.theta, state.theta)
    state.theta = centre.theta


class Updates:
    """The server's arithmetic: checks a gradient and applies it. Pure of messages."""

    def __init__(self, session: Session) -> None:
        self.state, self.monitor = session.state, session.monitor
        self.options: Asgd = session.config.algorithm  # type: ignore[assignment]
        self.rule = rule_of(self.options)
        self.limit = session.config.run.nonfinite_limit
        self._refused_in_a_row = 0
        self._previous = np.empty_like(self.state.theta) if session.config.run.gradient_statistics else None
        self._previous_from = -1
        self._scratch = np.empty_like(self.state.theta[: next(blocks(self.state.theta.size)).stop])

    def accepts(self, gradient: Array, note: Note, worker: int) -> bool:
        """Whether the gradient is finite. Counts and names a worker whose gradient is not; raises TrainingFailed
        when that persists."""
        with np.errstate(over="ignore", invalid="ignore"):
            square = float(np.dot(gradient, gradient))  # one pass at memory speed; overflow alone is no verdict
        if np.isfinite(square) or np.isfinite(gradient).all():
            self._refused_in_a_row = 0
            return True
        self._refused_in_a_row += 1
        self.monitor.refused(worker, note.index, note.loss)
        if self._refused_in_a_row >= self.limit:
            raise TrainingFailed(
                f"{self.limit} gradients in a row were not finite, the last from rank {worker} at update "
                f"{self.state.index}; a smaller training.learning_rate may help (run.nonfinite_limit)"
            )
        return False

    def apply(self, gradient: Array, note: Note, worker: int) -> None:
        """The algorithm's update with the worker's index j; counts i, the samples and the staleness."""
        state = self.state
        alpha = decay(state.index, note.index, self.options.gradient_decay)
        for b in blocks(state.theta.size):
            self.rule(state, b, gradient[b], note.learning_rate, alpha, self._scratch[: b.stop - b.start])
        self.monitor.updated(state.index - note.index)
        if self._previous is not None:
            self._compare(gradient, note, worker)
        state.index += 1

    def _compare(self, gradient: Array, note: Note, worker: int) -> None:
        """Chan & Lane §3.4: share of exact zeros, cosine between the gradients of two workers."""
        previous, cosine = self._previous, None
        assert previous is not None
        if self._previous_from not in (-1, worker):
            norms = np.linalg.norm(gradient) * np.linalg.norm(previous)
            cosine = float(np.dot(gradient, previous) / norms) if norms else None
        np.copyto(previous, gradient)
        self._previous_from = worker
        self.monitor.gradient_statistics(note.zeros, cosine)


class Server:
    """Rank 0's loop: takes notes, applies gradients, grants, dispenses samples, and evaluates when nothing waits."""

    def __init__(self, session: Session, centre: Centre, workers: list[int]) -> None:
        self.session, self.centre, self.workers = session, centre, workers
        self.transport, self.state, self.monitor = session.transport, session.state, session.monitor
        self.updates = Updates(session)
        self.options = self.updates.options
        self.in_order = self.options.order == "round-robin"
        self.assigned: dict[int, Work] = {}
        self.ready: list[int] = []
        self.gradients: dict[int, Note] = {}  # arrived, not yet applied
        self.hello: set[int] = set()
        self.pulling: int | None = None  # in round-robin order: who must have Θ before the next update
        self.stopped: set[int] = set()
        self.turn = 0
        now = session.clock()
        self.heard = dict.fromkeys(workers, now)
        self._received: Array | None = None
        self._snapshot: Array | None = None
        self._snapshot_sends: list[Any] = []
        self._asked: list[int] = []
        self.monitor.outstanding = lambda: list(self.assigned.values())

    def serve(self) -> None:
        """Until every worker has been told to stop."""
        backoff = self.transport.backoff("any worker")
        while len(self.stopped) < len(self.workers):
            busy = self.take_notes()
            busy |= self.apply_one()
            if not self.gradients:
                busy |= self.grant()
            busy |= self.greet()
            busy |= self.send_snapshots()
            busy |= self.monitor.turn(self.state)
            if busy:
                backoff.reset()
            else:
                self._check_deadlines()
                self._idle(backoff)
        for send in self._snapshot_sends:
            self.transport.wait(send, "a snapshot of Θ to leave")

    def _idle(self, backoff: Any) -> None:
        """Sleep until a note waits, with as little work between as there can be: the workers need the cores."""
        for _ in range(1 if self._asked else 50):
            backoff.pause()
            if self.transport.waiting(TO_SERVER):
                return

    # ---- what arrives

    def take_notes(self) -> bool:
        """Sort the waiting notes by what they ask."""
        taken = False
        while (message := self.transport.poll(TO_SERVER)) is not None:
            sender, note = message[0], unpack(message[1], message[0])
            if sender not in self.heard:
                raise WireError(f"rank {sender} is no worker of this server")
            self.heard[sender] = self.session.clock()
            self.session.stop.flag |= bool(note.stopping)
            taken = True
            match note.kind:
                case Kind.HELLO:
                    self.hello.add(sender)
                case Kind.READY:
                    self.ready.append(sender)
                case Kind.GRADIENT:
                    self.gradients[sender] = note
                case Kind.PULL:
                    self._asked.append(sender)
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
        gradient = self._collect(worker, note)
        if self.updates.accepts(gradient, note, worker):
            with self.centre.writing(self.state.index + 1):
                self.updates.apply(gradient, note, worker)
        given = self.assigned.pop(worker)
        self.state.assignments.give_back(given.rest(note.count))
        self.monitor.trained(note.count, note.loss, self.session.clock() - began)
        self._assign(worker)
        return True

    def grant(self) -> bool:
        """Tell those who wait with enough minibatches to hand over."""
        granted, self.ready = self.ready, []
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
        return self.state.assignments.exhausted and not (self.assigned and self.options.until_free)

    def _check(self, note: Note, worker: int) -> None:
        given = self.assigned.get(worker)
        if given is None or (note.epoch, note.start) != (given.epoch, given.start) or note.count > given.count:
            raise WireError(f"rank {worker} sent a gradient over samples it was not given")

    def _collect(self, worker: int, note: Note) -> Array:
        seen = self.centre.handed_over(worker)
        if seen is not None:
            return seen
        if self._received is None:
            self._received = np.empty_like(self.state.theta)
        if note.nbytes != self._received.nbytes:
            raise WireError(f"rank {worker} sends {note.nbytes} bytes, expected {self._received.nbytes}")
        self.transport.receive_into(worker, VECTOR, self._received, f"the gradient of rank {worker}")
        if checksum(self._received) != note.checksum:
            raise WireError(f"rank {worker} sent a gradient that does not match its checksum")
        return self._received

    def send_snapshots(self) -> bool:
        """Answer those whose direct reads failed with a copy of Θ between two updates."""
        if not self._asked:
            return False
        self._snapshot_sends = [send for send in self._snapshot_sends if not send.Test()]
        if self._snapshot_sends:
            return False  # the copy is still on its way to somebody
        if self._snapshot is None:
            self._snapshot = np.empty_like(self.state.theta)
        np.copyto(self._snapshot, self.state.theta)
        note = Note(Kind.SNAPSHOT, self.state.index, nbytes=self._snapshot.nbytes, checksum=checksum(self._snapshot))
        for worker in self._asked:
            self.transport.post(worker, TO_WORKER, note.pack())
            self._snapshot_sends.append(self.transport.send(worker, VECTOR, self._snapshot))
        self._asked.clear()
        return True

    def _check_deadlines(self) -> None:
        now, deadline = self.session.clock(), self.transport.deadline
        for worker in self.assigned:
            if now - self.heard[worker] > deadline:
                raise Overdue(f"rank {worker} sent nothing for {deadline:g} s while it had work (run.deadline)")


class Worker:
    """A worker's buffers and its half of the conversation."""

    def __init__(self, session: Session, centre: Centre, master: int, number: int) -> None:
        self.session, self.centre, self.master, self.number = session, centre, master, number
        self.transport = session.transport
        self.options: Asgd = session.config.algorithm  # type: ignore[assignment]
        self.theta = np.empty_like(session.state.theta)
        self.gradient = np.empty_like(self.theta)
        self._scratch = np.empty_like(self.theta[: next(blocks(self.theta.size)).stop])

    def ask(self, note: Note, what: str) -> Note:
        """Send a note and wait for the answer."""
        self.tell(note)
        return self.answer(what)

    def tell(self, note: Note) -> None:
        """Send a note, with this rank's wish to stop."""
        note = replace(note, stopping=int(self.session.stop.flag))
        self.transport.post(self.master, TO_SERVER, note.pack())

    def answer(self, what: str) -> Note:
        """The next note from the server that is not a grant come too late."""
        while True:
            note = unpack(self.transport.receive(self.master, TO_WORKER, what), self.master)
            if note.kind != Kind.GRANT:
                return note

    def pull(self, at_least: int) -> int:
        """Fetch Θ_j with j no older than this worker's own last update; j."""
        for _ in range(3):
            index = self.centre.read(self.theta)
            if index is not None and index >= at_least:
                return index
        return self._pull_by_message()

    def _pull_by_message(self) -> int:
        note = self.ask(Note(Kind.PULL), "Θ from the server")
        if note.kind != Kind.SNAPSHOT or note.nbytes != self.theta.nbytes:
            raise WireError(f"rank {self.master} answered a pull with kind {note.kind}, {note.nbytes} bytes")
        self.transport.receive_into(self.master, VECTOR, self.theta, "Θ from the server")
        if checksum(self.theta) != note.checksum:
            raise WireError(f"rank {self.master} sent a Θ that does not match its checksum")
        return note.index

    def round(self, order: Note) -> Note:
        """One round of gradients from Θ_j; the note that announces their sum, which lies in `centre.gradient`."""
        index = self.pull(order.index)
        if self.options.order == "round-robin":
            self.tell(Note(Kind.PULLED))
        total, eta, samples, loss, asked = self.centre.gradient, order.learning_rate, 0, 0.0, False
        minibatches = list(order.work.minibatches())
        self.session.learner.expect(minibatches)
        for number, minibatch in enumerate(minibatches, start=1):
            last = number == len(minibatches)
            target = total if number == 1 else self.gradient
            step = partial(self._step, target, total, None if last else eta)
            loss += self.session.learner.gradient(self.theta, target, minibatch, step) * minibatch.count
            samples += minibatch.count
            last |= self.session.stop.flag
            if last or (number >= self.options.minibatches and self._granted(asked)):
                break
            asked |= number >= self.options.minibatches
        zeros = self._zeros(total) if self.session.config.run.gradient_statistics else 0.0
        note = Note(Kind.GRADIENT, index, order.epoch, order.start, samples, order.minibatch, number)
        return replace(note, learning_rate=eta, loss=loss, zeros=zeros)

    def _step(self, g: Array, total: Array, eta: float | None, part: slice) -> None:
        """s ← s + g and θ ← θ − ηg on a part whose gradient has just been computed, while it is in cache.

        No own step (eta None) on the last minibatch before Θ replaces θ.
        """
        if g is total and eta is None:
            return
        for block in blocks(part.stop - part.start):
            b = slice(part.start + block.start, part.start + block.stop)
            if g is not total:
                np.add(total[b], g[b], out=total[b])
            if eta is not None:
                sgd(self.theta[b], g[b], self._scratch[: b.stop - b.start], eta=eta)

    def _granted(self, asked: bool) -> bool:
        """Whether the server has said that it is free; asks it once per round."""
        if not asked:
            self.tell(Note(Kind.READY))
        message = self.transport.poll(TO_WORKER, self.master)
        return message is not None and unpack(message[1], self.master).kind == Kind.GRANT

    def hand_over(self, note: Note) -> Note:
        """Give the summed gradient to the server; its answer, which comes once Θ includes it."""
        total = self.centre.gradient
        self.transport.traffic.bytes_sent += total.nbytes if self.centre.how == "shared" else 0
        if self.centre.how == "shared":
            return self.ask(note, "the server to apply a gradient")
        self.tell(replace(note, nbytes=total.nbytes, checksum=checksum(total)))
        sending = self.transport.send(self.master, VECTOR, total)
        answer = self.answer("the server to apply a gradient")
        self.transport.wait(sending, "a gradient to leave")
        return answer

    @staticmethod
    def _zeros(gradient: Array) -> float:
        return 1.0 - np.count_nonzero(gradient) / gradient.size


def work(session: Session, centre: Centre, master: int, number: int) -> None:
    """A worker's loop."""
    worker = Worker(session, centre, master, number)
    order = worker.ask(Note(Kind.HELLO), "the first work")
    while order.kind != Kind.STOP:
        if order.kind == Kind.WAIT:
            session.transport.sleep(0.1)
            order = worker.ask(Note(Kind.HELLO), "the next work")
        elif order.kind == Kind.WORK:
            order = worker.hand_over(worker.round(order))
        else:
            raise WireError(f"rank {master} sent a note of kind {order.kind}, which no server sends")


def _alone(session: Session) -> None:
    """A server and its one worker in one process: the same rounds without messages."""
    updates, state, monitor = Updates(session), session.state, session.monitor
    options = updates.options
    centre: Any = _OwnCentre(state.theta, state.index)
    worker = Worker(session, centre, 0, 0)
    while not session.stop.flag:
        settings = session.schedule.at(state.assignments.position)
        left = session.schedule.until_change(state.assignments.position)
        given = state.assignments.next(settings.minibatch, options.minibatches, left)
        if given is None:
            break
        order = Note(Kind.WORK, state.index, given.epoch, given.start, given.count, given.minibatch)
        note = worker.round(replace(order, learning_rate=settings.learning_rate))
        if updates.accepts(centre.gradient, note, 0):
            updates.apply(centre.gradient, note, 0)
            centre.index = state.index
        state.assignments.give_back(given.rest(note.count))
        monitor.trained(note.count, note.loss, 0.0)
        while monitor.turn(state):
            pass


class _OwnCentre:
    """Θ in this process."""

    how = "own"

    def __init__(self, theta: Array, index: int) -> None:
        self.theta, self.gradient, self.index = theta, np.empty_like(theta), index

    def read(self, out: Array) -> int:
        np.copyto(out, self.theta)
        return self.index
