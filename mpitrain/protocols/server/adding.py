"""A worker of a centre that only adds. In each period it claims samples, exchanges with the centre, and takes τ steps.

In round-robin order a token passes from worker to worker. Only its holder claims samples and exchanges; it passes the
token on before it computes. So a run repeats bit for bit. The losses of a period, from which the master decides on the
common rate, are told at the worker's next turn. If a turn includes the steps (`WorkerRule.whole_turns`), the worker
computes, adds what it has to add, and only then passes the token on.
"""

import json
from collections.abc import Callable
from enum import Enum

import msgspec
import numpy as np

from mpitrain.checkpoint.coordination import NOT_WRITTEN
from mpitrain.checkpoint.state import Numbers, checked
from mpitrain.flat import Array, block_pairs, on_host
from mpitrain.models.model import Consumer
from mpitrain.protocols.messages import Copied, Done, Finite, PeriodLosses, Report, Token
from mpitrain.protocols.server.interface import Centre
from mpitrain.protocols.server.link import MasterLink, RoundRobin
from mpitrain.protocols.standby import hear
from mpitrain.sampling.queue import Natural, Queue, Row, Work, joined, of_rows, to_rows
from mpitrain.sampling.stages import Settings
from mpitrain.training.context import Session
from mpitrain.training.loop import Loop, require_finite

REPORT_EVERY = 0.05  # seconds between two reports of a worker
POLL_INTERVAL = 0.05  # seconds between two polls of a worker whose stage has not come


class Phase(Enum):
    """Where a worker is in its period."""

    IDLE = "idle"  # there were no samples when it claimed some: it restarts at x̃ when it gets samples
    BETWEEN = "between"  # the last period is over, and with whole turns also the turn
    EXCHANGED = "exchanged"  # the next step is the first one after an exchange
    STEPPING = "stepping"
    DONE = "done"  # it trains no more


class MastersPast(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a rank in a checkpoint."""

    again: list[Row] = []  # on a master: samples that the queue hands out again


class WorkerPast(MastersPast, frozen=True, kw_only=True):
    """A worker's numbers in a checkpoint."""

    t: Natural  # its steps
    turns: Natural
    began: Natural  # t where it last started or restarted at x̃
    phase: Phase
    rest: list[Row]
    stock: list[Row]
    falls: Natural  # of the common learning rate, as far as it knows
    untold: tuple[Natural, Finite]  # the minibatches, and the sum of their losses, that the master does not know of


class AddingWorker(Loop[Work]):
    """A worker's loop around its rule. `rest`: the unused samples of this period; `stock`: those of its chunks after
    this period."""

    def __init__(self, session: Session, link: MasterLink, number: int, workers: list[int]) -> None:
        super().__init__(session)
        self.link, self.number, self.workers = link, number, workers
        self.transport, state = session.transport, session.state
        self.options = session.config.algorithm
        in_order = self.options.in_order and len(workers) > 1
        self._order = RoundRobin(self.transport, number, workers) if in_order else None
        theta = state.theta
        x = theta
        if session.starts_apart:
            x = session.network.initial(session.config.initial_seed + 1 + number, theta.dtype)
        to_device = session.device.to_device
        self.rule = self.options.worker(to_device(x), to_device(theta), len(workers), session.device.fast)
        state.local = self.rule.vectors
        self.phase = Phase.BETWEEN
        self.untold = (0, 0.0)
        self.t, self.turns, self.began, self.rest, self.stock = 0, 0, 0, list[Work](), list[Work]()
        self._g = np.empty_like(self.rule.at)
        self._whole = in_order and self.rule.whole_turns
        self._samples, self._loss, self._exchanges = 0, 0.0, 0
        self._reported, self.report_every = session.clock(), REPORT_EVERY

    # ---- the loop

    def run(self, centre: Centre, first: int = 0) -> None:
        """Train, period by period, until the end; the worker with number `first` has the token."""
        self.centre = centre
        staged = self.rule.at if centre.direct else self.session.state.theta
        self._staging = self.session.device.staging(staged)
        if self._order is not None and self.number == first:
            self._order.token = Token()
        self.train()
        self._finish()

    def next_work(self) -> Work | None:
        """The next minibatch of the period; after the last one, samples and an exchange begin a new period."""
        if self._holds_turn and self._order is not None:
            self._await_turn(self._order)  # after a resume, this worker may not have it yet
        if self.rest:
            return self.rest.pop(0)
        if self._holds_turn:
            self._end_turn()
        if self._order is not None:
            while not self._took_turn():  # waits for the token
                pass
        else:
            self.transport.until(self._took_turn, "its stage", [self.session.members[0]], nap=POLL_INTERVAL)
        return self.rest.pop(0) if self.rest else None

    def _took_turn(self) -> bool:
        """Take samples and exchange; False when there are none for this worker yet."""
        if self._order is not None and self._await_turn(self._order).finished:
            return True  # as the training is over
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
            if self.t and self.phase is not Phase.IDLE:
                self._push_pending()  # the restart would clear it
            self.phase = Phase.IDLE
        if not self._holds_turn:
            self._end_turn()
        return bool(self.rest)

    def _none_has_any(self) -> bool:
        """For a worker without samples: whether the training is over. In round-robin order, others may still have
        samples in chunks of their own; then it passes the token on, until that has gone round without meeting any."""
        if self._order is None or not self.options.samples_of_chunks:
            return True
        without = self._await_turn(self._order).without + 1
        if without >= len(self.workers):
            return True
        self.turns += 1
        self._order.end_turn(Token(without), self.stopping)
        return False

    @property
    def _holds_turn(self) -> bool:
        """Whether a turn with steps has begun."""
        return self._whole and self.phase in (Phase.EXCHANGED, Phase.STEPPING)

    def _end_turn(self) -> None:
        """Count the turn, and in round-robin order let the next worker begin; it sees what this one has added."""
        if self._holds_turn:
            self._push_pending()
            self.phase = Phase.BETWEEN
        self.turns += 1
        if self._order is not None:
            self.centre.complete()
            self._order.end_turn(Token(), self.stopping)

    def _push_pending(self) -> None:
        self._report_move()
        self.centre.settle()
        for piece in self.centre.pieces:
            d = self.rule.pending(piece)
            if d is not None:
                self.centre.push(piece, d if self.centre.direct else on_host(d))

    def _exchange(self) -> None:
        """Steps a and b of Algorithms 1 and 2, piece by piece; a worker that was idle restarts at x̃."""
        centre, rule, restarts = self.centre, self.rule, self.phase is Phase.IDLE
        centre.settle()
        self._tell_losses()
        active = self._settings(self.rest[0]).workers or len(self.workers)
        rule.begin(self._learning_rate(self.rest[0]), min(active, len(self.workers)))

        def treat(piece: slice, copy: Array) -> Array | None:
            if restarts:
                rule.restart(piece, copy)
                return None
            d = rule.exchange(piece, copy, self.t)
            return None if self._whole else d  # the end of the last turn has added everything

        if not restarts and not self._whole:
            self._report_move()
        for piece, d in self._staging.through(centre.pieces, centre.read, treat):
            if d is not None:
                centre.push(piece, d)
        if restarts:  # the optimizer's count begins anew, as its buffers do
            self.began = self.t
        self.phase = Phase.STEPPING if restarts else Phase.EXCHANGED
        self._exchanges += 1
        self.session.learner.expect(self.rest)

    def _tell_losses(self) -> None:
        """Tell the master the losses of the last period; if the run is to be repeatable, wait for the common learning
        rate that follows from them."""
        if not self.session.state.rate.reacts:
            return
        self.link.tell(PeriodLosses(*self.untold))
        self.untold = (0, 0.0)
        if self._order is not None or len(self.workers) == 1:
            self.link.until(lambda: not self.link.unheard, "the common learning rate")

    def advance(self, minibatch: Work) -> None:
        """One step."""
        learning_rate, first = self._learning_rate(minibatch), self.phase is Phase.EXCHANGED

        def update(part: slice, gradient: Array) -> None:
            for b, g in block_pairs(part, gradient):
                self.rule.step(b, g, learning_rate, self.t - self.began, first)
            self.centre.progress()

        loss = self.session.learner.gradient(self.rule.at, self._g, minibatch, Consumer(self._g, update))
        keys = "training.learning_rate or algorithm.tau"
        require_finite(loss, f"at its step {self.t}", self.transport.rank, keys)
        self.phase = Phase.STEPPING if self.rest or self._whole else Phase.BETWEEN
        self.t += 1
        self.untold = (self.untold[0] + 1, self.untold[1] + loss)
        self._samples, self._loss = self._samples + minibatch.count, self._loss + loss * minibatch.count

    def _learning_rate(self, minibatch: Work) -> float:
        planned = self._settings(minibatch).learning_rate
        return self.options.own_rate(self.session.state.rate(planned), self.t)

    def _settings(self, work: Work) -> Settings:
        schedule = self.session.schedule
        return schedule.at(work.position(schedule.samples))

    def _finish(self) -> None:
        """Push what is pending, unless the training was stopped, and may be resumed; then wait for the others."""
        if self._order is not None:
            self._await_turn(self._order)
        self.centre.settle()
        if not self.stopping and self.t:
            self._push_pending()
        self.centre.complete()
        if self._order is not None:  # the others leave one after another
            finished = self._await_turn(self._order).finished + 1
            if finished < len(self.workers):
                self._order.end_turn(Token(finished=finished), self.stopping)
        self.report()
        self.note_numbers()
        self.link.tell(Done(self.unused))
        self.phase = Phase.DONE
        self._until(lambda: self.link.over, "the others to finish")

    # ---- turns

    def _await_turn(self, order: RoundRobin) -> Token:
        """Wait until this worker has the token, and return it; note whether it tells to stop."""
        self._until(order.has_turn, "its turn")
        self.stopping |= order.stopping
        assert order.token is not None
        return order.token

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Attend to the master until the condition holds."""
        while not condition():
            self.link.until(lambda: condition() or self.link.saving, what)
            self.attend()

    # ---- the master's affairs

    def attend(self) -> None:
        """Report what has been trained, and do what the master asks."""
        if self.phase is not Phase.DONE and self.session.clock() - self._reported >= self.report_every:
            self.report()
        self.transport.heartbeat()
        self.link.poll()
        hear(self.session)
        self.stopping |= self.session.stop.flag or self.link.stopping
        if self.link.saving:
            self._give_piece()

    def _give_piece(self) -> None:
        """Copy this rank's piece of a checkpoint, name the samples that it was given and has not used, and wait until
        all have done so; then go on, while the piece is written. The centre holds what this rank has pushed."""
        self.centre.complete()
        if self.phase is not Phase.DONE:
            self.report()
        self.note_numbers()
        saver = self.session.saver
        assert saver is not None
        piece = saver.copy_own(self.session.state)
        assert piece is not None
        self.link.tell(Copied(piece.nbytes, self.unused))
        self.link.until(lambda: not self.link.saving, "the other ranks to stop for a checkpoint")
        if self.link.saved_as != NOT_WRITTEN:
            saver.write_own(self.link.saved_as, self.transport.rank, piece)

    def _report_move(self) -> None:
        """If ranks may be lost, report the samples of a move before it: they count once the move is in the centre."""
        if self.session.goes_on:
            self.report()

    def report(self) -> None:
        """Tell what has been trained since the last report."""
        self.link.tell(Report(self._samples, self._loss, self._exchanges))
        self._samples, self._loss, self._exchanges = 0, 0.0, 0
        self._reported = self.session.clock()

    @property
    def unused(self) -> tuple[Work, ...]:
        """What this worker was given and has not used: a message has room for ranges, not for each of τ minibatches."""
        return tuple(joined([*self.rest, *self.stock]))

    def note_numbers(self) -> None:
        """Bring this worker's numbers in the state, for a checkpoint, up to date, unless it has finished."""
        if self.phase is Phase.DONE:
            return
        works = {"rest": to_rows(self.rest), "stock": to_rows(self.stock)}
        numbers = {"t": self.t, "turns": self.turns, "began": self.began, "phase": self.phase.value}
        rate = {"falls": self.session.state.rate.falls, "untold": self.untold}
        self.session.state.local_numbers.update(**numbers, **works, **rate)

    def restored(self, numbers: Numbers) -> None:
        """Go on from the numbers of a checkpoint. Raises ValueError if they do not fit."""
        past, samples = checked(numbers, WorkerPast), self.session.state.queue.samples
        self.t, self.turns, self.began = past.t, past.turns, past.began
        self.rest, self.stock = of_rows(past.rest, samples), of_rows(past.stock, samples)
        self.phase, self.untold = past.phase, past.untold
        self.session.state.rate.hear(past.falls)
        self.rule.local.look()


def take_up(session: Session, worker: AddingWorker | None) -> tuple[Queue, int, list[list[Work]]]:
    """The queue, the number of the worker whose turn is first, and for each worker the samples that it has claimed and
    not used: from a checkpoint of as many ranks, or anew.

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
    mine = "" if worker is None else json.dumps((worker.turns, to_rows(worker.unused)))
    told = [json.loads(text) for text in transport.gather_texts(mine, "the workers' turns") if text]
    turns = [count for count, _ in told]
    return state.queue, turns.index(min(turns)), [of_rows(rows, state.queue.samples) for _, rows in told]
