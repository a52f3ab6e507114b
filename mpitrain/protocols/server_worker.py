"""A worker of the parameter server: its rounds of gradients, and its half of the conversation."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mpitrain.algorithms import Asgd
from mpitrain.flat import Array, blocks
from mpitrain.protocols.centre import Centre
from mpitrain.protocols.server_updates import Updates
from mpitrain.protocols.wire import TO_SERVER, TO_WORKER, VECTOR, Kind, Note, WireError, checksum, unpack
from mpitrain.rules.sgd import sgd
from mpitrain.session import Session


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


def alone(session: Session) -> None:
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
