"""A worker of a centre that only adds: periods of samples, exchange and τ steps, and its turns.

In round-robin order a token passes from worker to worker. Its holder takes its samples and exchanges, nobody else
does, and it computes after it has passed the token on: a run repeats bit for bit. The losses of a period, from which
the master decides on the common rate, are told at the worker's next turn. Where a turn holds the steps, too
(`WorkerRule.whole_turns`), it computes, adds what it has to add, and then passes the token on.
"""

import json
from collections.abc import Callable

import msgspec
import numpy as np

from mpitrain.checkpoint.coordination import REFUSED
from mpitrain.flat import Array, block_pairs, on_host
from mpitrain.models.model import Consumer
from mpitrain.protocols.messages import TO_NEXT, Copied, Done, Finite, PeriodLosses, Report, Token, Unused, pack
from mpitrain.protocols.server.interface import Centre
from mpitrain.protocols.server.link import Line
from mpitrain.sampling.queue import Natural, Queue, Row, Work, of_rows, to_rows
from mpitrain.state import Numbers, checked
from mpitrain.training.context import Session
from mpitrain.training.loop import Loop, require_finite

REPORT_EVERY = 0.05  # seconds between two reports of a worker
NAP = 0.05  # seconds between two looks of a worker whose stage has not come


class MastersPast(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a rank in a checkpoint; a master's name samples that the queue hands out again."""

    again: list[Row] = []


class WorkerPast(MastersPast, frozen=True, kw_only=True):
    """A worker's: t, turns, t where it last (re)started, unused samples, the falls of the common rate that it knows of,
    the minibatches, and the sum of their losses, that it has not told."""

    t: Natural
    turns: Natural
    began: Natural
    rest: list[Row]
    stock: list[Row]
    open: bool
    idle: bool
    falls: Natural
    untold: tuple[Natural, Finite]


class AddingWorker(Loop[Work]):
    """A worker's loop around its method. `rest` is what is left of the period, `stock` what is left of its chunks after
    that."""

    def __init__(self, session: Session, line: Line, number: int, workers: list[int]) -> None:
        super().__init__(session)
        self.line, self.number, self.workers = line, number, workers
        self.transport, state = session.transport, session.state
        self.options = session.config.algorithm
        self.in_order = self.options.in_order and len(workers) > 1
        # Only workers with chunks of their own can still have samples when another one has none.
        self._lookers = len(workers) if self.options.group else 0
        theta = state.theta
        x = theta
        if self.options.starts_apart:
            x = session.network.initial(session.config.initial_seed + 1 + number, theta.dtype)
        to_device = session.device.to_device
        self.rule = self.options.worker(to_device(x), to_device(theta), len(workers), session.device.fast)
        state.local = self.rule.vectors
        self.untold = (0, 0.0)
        self.t, self.turns, self.began, self.rest, self.stock = 0, 0, 0, list[Work](), list[Work]()
        self._g = np.empty_like(self.rule.at)
        self._whole = self.in_order and self.rule.whole_turns
        self._first = self._idle = self._done = self._open = False  # open: a turn with steps has begun
        self._samples, self._loss, self._exchanges = 0, 0.0, 0
        self._reported, self.report_every = session.clock(), REPORT_EVERY

    # ---- the loop

    def run(self, centre: Centre, first: int = 0) -> None:
        """Periods until the end; `first` is the worker that has the token."""
        self.centre = centre
        staged = self.rule.at if centre.direct else self.session.state.theta
        self._staging = self.session.device.staging(staged)
        self._token: int | None = 0 if self.number == first else None  # how many have finished
        self.train()
        self._finish()

    def next_work(self) -> Work | None:
        """The next minibatch of the period; after the last one, samples and an exchange begin a new period."""
        if self._open:
            self._await_token()  # which this worker has, but after a resume
        if self.rest:
            return self.rest.pop(0)
        if self._open:
            self._end_turn()
        if self.in_order:
            while not self._took_turn():  # which waits for the token
                pass
        else:
            self.transport.until(self._took_turn, "its stage", [self.session.members[0]], nap=NAP)
        return self.rest.pop(0) if self.rest else None

    def _took_turn(self) -> bool:
        """Take samples and exchange; False when there are none for this worker yet."""
        if self.in_order:
            self._await_token()
            assert self._token is not None
            if self._token > self._lookers:  # somebody has finished
                return True
        self.attend()
        if self.stopping:
            return True
        works, more, _ = self.centre.claim(len(self.stock))
        self.stock += works
        self.rest, self.stock = self.stock[: self.options.period], self.stock[self.options.period :]
        if not self.rest and not more:
            return self._none_has_any()
        if self.rest:
            self._exchange()
        else:
            self._idle = True
        self._open = self._whole and bool(self.rest)
        if not self._open:
            self._end_turn()
        return bool(self.rest)

    def _none_has_any(self) -> bool:
        """For a worker without samples: whether the training is over. In round-robin order with chunks, it passes the
        token on until it has gone round without meeting a worker that has samples."""
        if not self.in_order or self._token is None or self._token + 1 >= self._lookers:
            return True
        self.turns += 1
        self._pass_token(self._token + 1)
        return False

    def _end_turn(self) -> None:
        """Count the turn, and in round-robin order let the next worker begin, which sees what this one has added."""
        if self._open:
            self._push_pending()
        self._open = False
        self.turns += 1
        if self.in_order:
            self.centre.complete()
            self._pass_token(0)

    def _push_pending(self) -> None:
        self.centre.settle()
        for piece in self.centre.pieces:
            d = self.rule.pending(piece)
            if d is not None:
                self.centre.push(piece, d if self.centre.direct else on_host(d))

    def _exchange(self) -> None:
        """Steps a and b of Algorithms 1 and 2, piece by piece; a worker that was idle restarts at x̃."""
        centre, rule = self.centre, self.rule
        centre.settle()
        self._tell_losses()
        position = self._position(self.rest[0])
        active = min(self.session.schedule.at(position).workers or len(self.workers), len(self.workers))
        rule.begin(self._eta(self.rest[0]), active)

        def read(piece: slice, copy: Array) -> None:
            centre.read(piece, copy)

        def treat(piece: slice, copy: Array) -> Array | None:
            if self._idle:
                rule.restart(piece, copy)
                return None
            d = rule.exchange(piece, copy, self.t)
            return None if self._whole else d  # the end of the last turn has added everything

        for piece, d in self._staging.through(centre.pieces, read, treat):
            if d is not None:
                centre.push(piece, d)
        if self._idle:  # the optimizer's count begins anew, as its buffers do
            self.began = self.t
        self._first, self._idle = not self._idle, False
        self._exchanges += 1
        self.session.learner.expect(self.rest)

    def _tell_losses(self) -> None:
        """Let the master know the losses of the last period; where the run shall be repeatable, hear at once what has
        come of the common rate."""
        if not self.session.state.rate.reacts:
            return
        self.line.tell(PeriodLosses(*self.untold))
        self.untold = (0, 0.0)
        if self.in_order or len(self.workers) == 1:
            self.line.until(lambda: not self.line.unheard, "the common learning rate")

    def advance(self, minibatch: Work) -> None:
        """One step."""
        eta, first = self._eta(minibatch), self._first

        def update(part: slice, gradient: Array) -> None:
            for b, g in block_pairs(part, gradient):
                self.rule.step(b, g, eta, self.t - self.began, first)
            self.centre.progress()

        loss = self.session.learner.gradient(self.rule.at, self._g, minibatch, Consumer(self._g, update))
        keys = "training.learning_rate or algorithm.tau"
        require_finite(loss, f"at its step {self.t}", self.transport.rank, keys)
        self._first = False
        self.t += 1
        self.untold = (self.untold[0] + 1, self.untold[1] + loss)
        self._samples, self._loss = self._samples + minibatch.count, self._loss + loss * minibatch.count

    def _eta(self, minibatch: Work) -> float:
        eta = self.session.schedule.at(self._position(minibatch)).learning_rate
        return self.options.own_rate(self.session.state.rate(eta), self.t)

    def _position(self, work: Work) -> int:
        return work.epoch * self.session.learner.corpus.samples + work.start

    def _finish(self) -> None:
        """Give x̃ what is pending, unless the training goes on some day; then wait for the others."""
        if self.in_order:
            self._await_token()
        self.centre.settle()
        if not self.stopping and self.t:
            self._push_pending()
        self.centre.complete()
        if self.in_order:
            self._leave()
        self.report()
        for work in self.unused:
            self.line.tell(Unused(work))
        self.note_numbers()
        self.line.tell(Done())
        self._done = True
        self._until(lambda: self.line.over, "the others to finish")

    # ---- turns

    def _leave(self) -> None:
        """Let the next worker know that this one trains no more; all follow, one after another."""
        finished = max(self._token or 0, self._lookers) + 1
        if finished < self._lookers + len(self.workers):
            self._pass_token(finished)

    def _await_token(self) -> None:
        self._until(self._has_token, "its turn")

    def _has_token(self) -> bool:
        if self._token is None and (arrived := TO_NEXT.poll(self.transport)) is not None:
            self._token = arrived[1].message.finished
            self.stopping |= arrived[1].stopping
        return self._token is not None

    def _pass_token(self, finished: int) -> None:
        self._token = None
        following = self.workers[(self.number + 1) % len(self.workers)]
        self.transport.post(following, TO_NEXT.tag, pack(Token(finished), self.stopping))

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Attend to the master until the condition holds."""
        while not condition():
            self.line.until(lambda: condition() or self.line.saving, what)
            self.attend()

    # ---- the master's affairs

    def attend(self) -> None:
        """Report what has been trained, and do what the master asks."""
        if not self._done and self.session.clock() - self._reported >= self.report_every:
            self.report()
        self.transport.heartbeat()
        self.line.look()
        self.stopping |= self.session.stop.flag or self.line.stopping
        if self.line.saving:
            self._give_piece()

    def _give_piece(self) -> None:
        """Copy this rank's piece of a checkpoint, name the samples that it was given and has not used, and wait until
        all have done so; then go on, while the piece is written. The centre holds what this rank has pushed."""
        self.centre.complete()
        if not self._done:
            self.report()
        self.note_numbers()
        saver = self.session.saver
        assert saver is not None
        piece = saver.copy_own(self.session.state)
        assert piece is not None
        for work in self.unused:
            self.line.tell(Unused(work))
        self.line.tell(Copied(piece.nbytes))
        self.line.until(lambda: not self.line.saving, "the other ranks to stop for a checkpoint")
        if self.line.saved_as != REFUSED:
            saver.write_own(self.line.saved_as, self.transport.rank, piece)

    def report(self) -> None:
        """Tell what has been trained since the last report."""
        self.line.tell(Report(self._samples, self._loss, self._exchanges))
        self._samples, self._loss, self._exchanges = 0, 0.0, 0
        self._reported = self.session.clock()

    @property
    def unused(self) -> list[Work]:
        """What this worker was given and has not used."""
        return [*self.rest, *self.stock]

    def note_numbers(self) -> None:
        """Put the numbers of a checkpoint where it looks for them."""
        works = {"rest": to_rows(self.rest), "stock": to_rows(self.stock)}
        numbers = {"t": self.t, "turns": self.turns, "began": self.began, "open": self._open, "idle": self._idle}
        rate = {"falls": self.session.state.rate.falls, "untold": self.untold}
        self.session.state.local_numbers.update(**numbers, **works, **rate)

    def restored(self, numbers: Numbers) -> None:
        """Go on from the numbers of a checkpoint. Raises ValueError for those that do not fit."""
        past, samples = checked(numbers, WorkerPast), self.session.state.queue.samples
        self.t, self.turns, self.began = past.t, past.turns, past.began
        self.rest, self.stock = of_rows(past.rest, samples), of_rows(past.stock, samples)
        self._open, self._idle = self._whole and (past.open or bool(self.rest)), past.idle
        self.untold = past.untold
        self.session.state.rate.hear(past.falls)
        self.rule.restored()


def take_up(session: Session, worker: AddingWorker | None) -> tuple[Queue, int]:
    """The samples to train on and the worker whose turn is first, from a checkpoint of the same ranks or anew.

    With other ranks the workers restart at x̃, and what the old ones had not used comes first in the queue. Collective.
    """
    state, transport, master = session.state, session.transport, session.members[0]
    again: list[Work] = []

    def take(numbers: Numbers) -> None:
        again.extend(of_rows(checked(numbers, MastersPast).again, state.queue.samples))
        if worker is not None:
            worker.restored(numbers)

    if transport.rank == master:
        state.local_numbers["again"] = []
    if session.restore(take):
        rows = transport.broadcast(json.dumps(to_rows(again)).encode(), "the checkpoint", master)
        state.queue.returned = [Work(*row) for row in json.loads(rows)]
    turns = transport.gather_texts("" if worker is None else str(worker.turns), "the workers' turns")
    counts = [int(text) for text in turns if text]
    return state.queue, counts.index(min(counts))
