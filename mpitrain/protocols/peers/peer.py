"""One rank of the training: gradient, residual, message, and what is due between minibatches."""

import msgspec
import numpy as np

from mpitrain.algorithms import SparseDelta
from mpitrain.compression.compressor import Compressor, Thresholds
from mpitrain.compression.residual import Entries
from mpitrain.compression.thresholds import COARSE
from mpitrain.flat import Array
from mpitrain.models.model import Consumer, Ready
from mpitrain.protocols.compressed import largest
from mpitrain.protocols.messages import Given, Reached, Totals
from mpitrain.protocols.peers.exchange import DeltaExchange
from mpitrain.protocols.peers.rounds import Rounds, Steps, Turn
from mpitrain.protocols.peers.turns import Turns
from mpitrain.sampling.queue import Work
from mpitrain.training.context import Session
from mpitrain.training.loop import Trainer, require_finite

REPORT_EVERY, NORM_EVERY = 0.2, 5.0  # seconds


class Peer(Trainer):
    """One rank's part; `number` is its place among the members."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.transport, self.state = session.transport, session.state
        options = SparseDelta.of(session.config.algorithm)
        self.options, self.members = options, session.members
        self.in_step = options.synchronous or options.order == "round-robin"
        self.number = self.members.index(self.transport.rank)
        session.learner.per_sample = False  # the residual takes the mean gradient times the samples, in one pass
        self._gradient = np.empty_like(self.state.theta)
        self.rounds = Rounds(self.state.queue, session.schedule, len(self.members), options.tau)
        self.compressor = _compressor(session, options)
        on_ready = Consumer(self._gradient, self._part_done) if session.device.emits_parts else self._layer_done
        self._turns = Turns(
            *(session, self.compressor, self._gradient, self._gradient_at, on_ready),
            self._layer_done,
        )
        self.exchange = DeltaExchange(session, self.compressor.wire, at_once=not self.in_step)
        self.save_wanted = False  # at the next meeting, which this rank then calls
        self.report = Totals()
        self._index, self._workers = self.state.index, 0
        self._reported = self._checked = session.clock()
        self._began = self._measured = self._reported
        if self.number == 0:
            self._warn_of_coarse_steps()

    def compute(self, steps: Steps, workers: int, emit: bool) -> Entries:
        """A turn's minibatches into the residual, in a round of this many workers; the entries to send, none unless
        `emit`."""
        return self._turns.entries(steps, workers, emit)

    def _gradient_at(self, x: Array, work: Work, on_ready: Ready) -> None:
        loss = self.session.learner.gradient(x, self._gradient, work, on_ready)
        require_finite(loss, f"at its minibatch {self.report.minibatches}", self.transport.rank)
        self._count(samples=work.count, loss=loss * work.count, minibatches=1)

    def send(self, entries: Entries, calls: bool = False, of_work: bool = True) -> None:
        """Send the entries of the last minibatch to all; those of a rank without `of_work` are none."""
        nbytes = self.exchange.send(entries, self.compressor.step, self.compressor.threshold, calls)
        self._count(messages=int(of_work), elements=entries.words.size, nbytes=nbytes)

    def enter_stage(self, turn: Turn) -> None:
        """The master tells those whose stage begins."""
        if self.number == 0 and turn.workers != self._workers:
            self._workers = turn.workers
            self.exchange.tell(self.exchange.peers, Reached(turn.place))

    def attend(self) -> None:
        """What is due between two minibatches: a check of the replica, a report, records and evaluation."""
        self.transport.heartbeat()
        now = self.session.clock()
        if self.options.check_every and now - self._checked >= self.options.check_every:
            self.exchange.replica.check()
            self._checked = self.session.clock()
        if self.report.minibatches and now - self._measured >= min(NORM_EVERY, (now - self._began) / 2):
            self._measured = now
            self.measure()
        if self.number and now - self._reported >= REPORT_EVERY and self.exchange.told():
            self._reported = now
            if amounts := self.session.figures.take():
                self.exchange.tell([self.members[0]], Given(amounts))
            self.exchange.tell([self.members[0]], self.report)
        if self.number == 0:
            self.keep_records()

    def measure(self) -> None:
        """Bring what a report says of the residual up to date."""
        self.report = msgspec.structs.replace(self.report, residual=self.compressor.norm())

    def keep_records(self) -> None:
        """The master's: counts, evaluation of a copy, all the while receiving."""
        self.exchange.tally.take(self.transport.rank, self.report)
        self.count_updates()
        while self.session.monitor.turn(self):
            self.exchange.receive()

    def count_updates(self) -> None:
        """An update is a message applied, own ones too."""
        index = self._index + self.exchange.replica.applied
        self.session.counters.updated(count=index - self.state.index)
        self.state.index = index

    def save(self) -> None:
        """At a meeting."""
        self.save_wanted = True

    def _part_done(self, part: slice, gradient: Array) -> None:
        self.compressor.take(part, gradient)
        self.exchange.collect()

    def _layer_done(self, part: slice) -> None:
        self.exchange.collect()

    def _count(self, **more: float) -> None:
        report = self.report
        sums = {name: getattr(report, name) + n for name, n in more.items()}
        self.report = msgspec.structs.replace(report, threshold=self.compressor.threshold, **sums)

    def _warn_of_coarse_steps(self) -> None:
        if not isinstance(self.compressor, Thresholds):
            return
        for number, settings in enumerate(self.session.schedule.all):
            step = self.compressor.step_at(self._turns.rate_of_entries(settings, len(self.members)))
            if step < COARSE:
                line = f"stage {number}: rate x threshold is only {step} units of 2^-26: coarse steps"
                self.session.monitor.warn(line)


def _compressor(session: Session, options: SparseDelta) -> Compressor:
    """The largest entries of chunks, or what exceeds a threshold."""
    residual, numbers, device = session.state.local["residual"], session.state.local_numbers, session.device
    numbers.setdefault("threshold", options.threshold)
    if options.top_k:
        return largest(session, residual, options.top_k, options.chunk, options.bits, options.codec)
    target = 0.0 if device.phantom else options.target_density
    how = (options.bits, options.codec, target, options.clip, device.emit, device.host_words)
    return Thresholds(residual, numbers, *how)
