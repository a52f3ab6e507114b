"""A worker of the parameter server: its rounds of gradients, and its half of the conversation."""

from dataclasses import replace
from functools import partial
from typing import Any, cast

import msgspec
import numpy as np

from mpitrain.algorithms import Served
from mpitrain.device.cpu import InPlace
from mpitrain.errors import WireError
from mpitrain.flat import Array, block_of, block_slices
from mpitrain.mpi.tags import Tag
from mpitrain.optimizers import Descent
from mpitrain.protocols.centre import Centre
from mpitrain.protocols.messages import (
    TO_SERVED,
    TO_SERVER,
    Answer,
    Assignment,
    FromServed,
    Gradient,
    Grant,
    Hello,
    Pull,
    Pulled,
    Ready,
    Snapshot,
    Stop,
    StopRequest,
)
from mpitrain.protocols.server_updates import Updates
from mpitrain.sampling.means import Mean
from mpitrain.training.context import Session
from mpitrain.training.trainer import Trainer


class Worker:
    """A worker's buffers and its half of the conversation."""

    def __init__(self, session: Session, centre: Centre, master: int, number: int) -> None:
        self.session, self.centre, self.master, self.number = session, centre, master, number
        self.transport = session.device.transport(session.transport)
        self.options = cast(Served, session.config.algorithm)
        device = session.device
        self.theta = np.empty_like(device.to_device(session.state.theta))
        self.gradient = np.empty_like(self.theta)
        # Θ and the sum of gradients cross between this worker's memory and the exchange's, where those are two.
        apart = type(self.theta) is not type(centre.gradient)
        self._read = device.host_like(self.theta) if apart else self.theta
        self._total = np.empty_like(self.theta) if apart else centre.gradient
        self._outgoing = device.outgoing(self._total, centre.gradient) if apart else InPlace()
        self._local = Descent(self.options.optimizer(device.fast), self.theta)
        self._counts_zeros = session.config.run.gradient_statistics

    def ask(self, message: FromServed, what: str) -> Answer:
        """Send a message and wait for the answer."""
        self.tell(message)
        return self.answer(what)

    def tell(self, message: FromServed) -> None:
        """Send a message."""
        TO_SERVER.tell(self.session, self.master, message)

    def answer(self, what: str) -> Answer:
        """The next message from the server that is not a grant come too late. Meanwhile a stop request is passed on."""
        transport, told = self.session.transport, self.session.stop.flag
        answers: list[Answer] = []

        def came() -> bool:
            nonlocal told
            if self.session.stop.flag and not told:
                told = True
                self.tell(StopRequest())
            arrived = TO_SERVED.poll(self.transport, self.master)
            if arrived is not None and not isinstance(arrived[1].message, Grant):
                answers.append(arrived[1].message)
            return bool(answers)

        transport.until(came, what, [self.master])
        return answers[0]

    def pull(self, at_least: int) -> int:
        """Fetch Θ_j with j no older than this worker's own last update; j."""
        for _ in range(3):
            index = self.centre.read(self._read)
            if index is not None and index >= at_least:
                break
        else:
            index = self._pull_by_message()
        if self._read is not self.theta:
            self.session.device.upload(self.theta, self._read, steady=True)
        return index

    def _pull_by_message(self) -> int:
        answer = self.ask(Pull(), "Θ from the server")
        if not isinstance(answer, Snapshot) or answer.nbytes != self._read.nbytes:
            raise WireError(f"rank {self.master} answered a pull with {answer}")
        self.transport.receive_into(self.master, Tag.VECTOR, self._read, "Θ from the server")
        if self.session.device.checksum(self._read) != answer.checksum:
            raise WireError(f"rank {self.master} sent a Θ that does not match its checksum")
        return answer.index

    def round(self, order: Assignment) -> Gradient:
        """One round of gradients from Θ_j; the message that tells of their sum, which lies in `centre.gradient`."""
        index = self.pull(order.index)
        if self.options.order == "round-robin" and self.transport.rank != self.master:  # alone, nobody waits for it
            self.tell(Pulled())
        total, eta, samples, loss, zeros = self._total, order.learning_rate, 0, 0.0, Mean()
        minibatches = list(order.work.minibatches())
        self.session.learner.expect(minibatches)
        for number, minibatch in enumerate(minibatches, start=1):
            last = number == len(minibatches)
            target = total if number == 1 else self.gradient
            step, known = partial(self._step, target, total, None if last else eta), last
            loss += self.session.learner.gradient(self.theta, target, minibatch, step) * minibatch.count
            samples += minibatch.count
            self.transport.heartbeat()
            if self._counts_zeros:
                zeros.add(self._zeros(target))
            if last or self.session.stop.flag or self._granted(ask=number == self.options.period):
                break
        if not known:  # the last minibatch was not known to be it
            self._outgoing.start(slice(0, total.size))
        trained = replace(order.work, count=samples)
        return Gradient(index, trained, number, eta, loss, zeros.value or 0.0)

    def _step(self, g: Array, total: Array, eta: float | None, part: slice) -> None:
        """s ← s + g and θ ← θ − ηg on a part whose gradient has just been computed, while it is in cache.

        No own step (eta None) on the last minibatch before Θ replaces θ.
        """
        for b in block_slices(part, block_of(total)) if eta is not None or g is not total else ():
            if g is not total:
                s = total[b]
                np.add(s, g[b], out=s)  # the same object: else CuPy makes a copy first
            if eta is not None:
                self._local.step(b, g[b], eta, 0)
        if eta is None:
            self._outgoing.start(part)

    def _granted(self, ask: bool) -> bool:
        """Whether the server has said that it is free, or that the end is wished for; `ask` it once per round."""
        if ask:
            self.tell(Ready())
        arrived = TO_SERVED.poll(self.transport, self.master)
        return arrived is not None and isinstance(arrived[1].message, Grant)

    def hand_over(self, told: Gradient) -> Answer:
        """Give the summed gradient to the server; its answer, which comes once Θ includes it."""
        total = self.centre.gradient
        self._outgoing.finish()
        self.transport.traffic.bytes_sent += total.nbytes if self.centre.how == "shared" else 0
        if self.centre.how == "shared":
            return self.ask(told, "the server to apply a gradient")
        self.tell(msgspec.structs.replace(told, nbytes=total.nbytes, checksum=self.session.device.checksum(total)))
        sending = self.transport.send(self.master, Tag.VECTOR, total)
        answer = self.answer("the server to apply a gradient")
        self.transport.wait(sending, "a gradient to leave", whom=[self.master])
        return answer

    @staticmethod
    def _zeros(gradient: Array) -> float:
        return 1.0 - float(np.count_nonzero(gradient)) / gradient.size


def work(session: Session, centre: Centre, master: int, number: int) -> None:
    """A worker's loop."""
    worker = Worker(session, centre, master, number)
    order = worker.ask(Hello(), "the first work")
    while not isinstance(order, Stop):
        match order:
            case Assignment():
                order = worker.hand_over(worker.round(order))
            case Snapshot():
                raise WireError(f"rank {master} sent a Θ that nobody asked for")


def alone(session: Session) -> None:
    """A server and its one worker in one process: the same rounds without messages."""
    updates, state, trainer = Updates(session), session.state, Trainer(session)
    options = updates.options
    centre: Any = _OwnCentre(state.theta, state.index)
    worker = Worker(session, centre, 0, 0)
    while not session.stop.flag:
        settings = session.schedule.at(state.queue.position)
        left = session.schedule.until_change(state.queue.position)
        given = state.queue.next(settings.minibatch, options.period, left)
        if given is None:
            break
        told = worker.round(Assignment(state.index, given, settings.learning_rate))
        if updates.accepts(centre.gradient, told, 0):
            updates.apply(centre.gradient, told, 0)
            centre.index = state.index
            session.counters.trained(told.work.count, told.loss)
        state.queue.give_back(given.rest(told.work.count))
        while session.monitor.turn(trainer):
            pass


class _OwnCentre:
    """Θ in this process."""

    how = "own"

    def __init__(self, theta: Array, index: int) -> None:
        self.theta, self.gradient, self.index = theta, np.empty_like(theta), index

    def read(self, out: Array) -> int:
        np.copyto(out, self.theta)
        return self.index
