"""One rank of the training: its turns, each of gradient, residual and message, and what is due between them.

A turn puts a gradient into the residual, a gradient with momentum, or what local steps have changed.
"""

import numpy as np

from mpitrain.algorithms import SparseDelta
from mpitrain.algorithms.optimizers import Descent, Sgd
from mpitrain.algorithms.optimizers.sgd import accelerate
from mpitrain.compression.compressor import Compressor, Thresholds
from mpitrain.compression.residual import INDEX, Entries
from mpitrain.compression.thresholds import COARSE
from mpitrain.flat import Array, block_of, block_slices, scratch_for
from mpitrain.models.model import Consumer, Ready
from mpitrain.protocols.compressed import largest
from mpitrain.protocols.messages import PeerReport, Reached
from mpitrain.protocols.peers.exchange import DeltaExchange
from mpitrain.protocols.peers.rounds import Rounds, Steps, Turn
from mpitrain.sampling.queue import Work
from mpitrain.sampling.stages import Settings
from mpitrain.training.context import Session
from mpitrain.training.loop import Trainer, require_finite

REPORT_EVERY, NORM_EVERY = 0.2, 5.0  # seconds


class Peer(Trainer):
    """One rank of the training; `number` is its index among the members."""

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
        fast, self._velocity = session.device.fast, self.state.local.get("velocity")
        self._local = Descent(Sgd(fast), np.empty_like(self._gradient)) if options.tau > 1 else None
        self._accelerate, self._scratch = fast(accelerate), scratch_for(self._gradient)
        self._blocks = block_slices(slice(0, self._gradient.size), block_of(self._gradient))
        self.exchange = DeltaExchange(session, self.compressor.wire, at_once=not self.in_step)
        self.save_wanted = False  # if true, this rank calls a meeting, at which all save
        self._minibatches, self._samples, self._loss = 0, 0, 0.0  # the latter two since the last `report`
        self._norm: float | None = None  # the residual's, 5 s old at most; None before it was measured
        self._index, self._workers = self.state.index, 0
        self._reported = self._checked = session.clock()
        self._began = self._measured = self._reported
        if self.number == 0:
            self._warn_of_coarse_steps()

    def compute(self, steps: Steps, workers: int, emit: bool) -> Entries:
        """Take a turn in a round of this many workers; returns the entries to send, none unless `emit`."""
        self.exchange.computing = True
        try:
            return self._entries(steps, workers, emit)
        finally:
            self.exchange.computing = False

    def _entries(self, steps: Steps, workers: int, emit: bool) -> Entries:
        options, compressor, (work, settings) = self.options, self.compressor, steps[-1]
        of_entries = self._rate_of_entries(settings, workers)
        if emit and options.error_decay < 1:
            np.multiply(compressor.residual, options.error_decay, out=compressor.residual)
        if options.density_warmup:
            compressor.target = options.density_at(work.epoch + work.start / self.state.queue.samples)
        if self._local is not None:
            change = self._changed(self._local, steps)
            compressor.begin(1 / self._rate(settings), of_entries, emit)  # in gradients, as the threshold is
            return compressor.end(change)
        if self._velocity is not None:
            self._gradient_at(self.state.theta, work, self._layer_done)
            compressor.begin(1, of_entries, emit)
            return self._with_momentum(self._velocity, work.count)
        compressor.begin(work.count, of_entries, emit)
        in_parts = self.session.device.emits_parts
        on_ready = Consumer(self._gradient, self._part_done) if in_parts else self._layer_done
        self._gradient_at(self.state.theta, work, on_ready)
        return compressor.end(self._gradient)

    def _rate_of_entries(self, settings: Settings, workers: int) -> float:
        """The factor by which an entry, an element of a sum of gradients, is multiplied when it is applied."""
        return self._rate(settings) / (workers if self.options.combine == "mean" else 1)

    def _rate(self, settings: Settings) -> float:
        """The learning rate for sums of gradients."""
        per = self.session.config.training.rate_per
        return self.options.rate(per, settings.learning_rate, settings.minibatch)

    def _changed(self, local: Descent, steps: Steps) -> Array:
        """Θ − x after local steps from Θ."""
        theta = self.state.theta
        np.copyto(local.x, theta)
        for work, settings in steps:
            self._gradient_at(local.x, work, self._layer_done)
            eta = self._rate(settings) * work.count
            for b in self._blocks:
                local.step(b, self._gradient[b], eta, 0)
        return np.subtract(theta, local.x, out=local.x)

    def _with_momentum(self, u: Array, samples: int) -> Entries:
        """u ← μu + g; the elements that are sent are then set to 0 in u (Lin et al. 2018, §3.1 and 3.2)."""
        for b in self._blocks:
            scratch = self._scratch[: b.stop - b.start]
            self._accelerate(u[b], self._gradient[b], scratch, eta=-samples, mu=self.options.momentum)
        entries = self.compressor.end(u)
        u[self.session.device.to_device((entries.words & INDEX).astype(np.int64))] = 0
        return entries

    def _gradient_at(self, x: Array, work: Work, on_ready: Ready) -> None:
        loss = self.session.learner.gradient(x, self._gradient, work, on_ready)
        require_finite(loss, f"at its minibatch {self._minibatches}", self.transport.rank)
        self._minibatches, self._samples = self._minibatches + 1, self._samples + work.count
        self._loss += loss * work.count

    def send(self, entries: Entries, turns: int, steps: Steps, emit: bool = True, calls: bool = False) -> None:
        """Send the entries of the last turn, of these steps, to all peers if `emit`. `turns`: how many this rank has
        done. Without `steps` it had no turn in this round, and there are no entries."""
        step, threshold = self.compressor.step, self.compressor.threshold
        nbytes = self.exchange.send(entries, step, threshold, calls, turns) if emit else 0
        turn, elements, give = int(bool(steps)), entries.words.size, self.session.figures.give
        give("density", elements, self.state.theta.size * turn)
        give("bytes_per_minibatch", nbytes, len(steps))  # each message once, however many peers it goes to
        give("compression_ratio", self.state.theta.nbytes * turn, nbytes)
        give("bits_per_element", 8 * nbytes, elements)
        give("emissions_skipped", int(not emit))
        self._give_newest()

    def enter_stage(self, turn: Turn) -> None:
        """If this rank is the master and another stage begins, tell the peers."""
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
        if self._minibatches and now - self._measured >= min(NORM_EVERY, (now - self._began) / 2):
            self._measured = now
            self.measure()
        if self.number and now - self._reported >= REPORT_EVERY and self.exchange.told():
            self._reported = now
            self.exchange.tell([self.members[0]], self.report())
        if self.number == 0:
            self.exchange.count(self.transport.rank, self.report())
            self.count_updates()
            while self.session.monitor.turn(self):  # evaluates a copy of the weights, slice by slice
                self.exchange.receive()

    def measure(self) -> None:
        """Measure the residual's norm."""
        self._norm = self.compressor.norm() if self.session.counters.measures else None
        self._give_newest()

    def _give_newest(self) -> None:
        if not self.options.top_k:
            self.session.figures.give("threshold", self.compressor.threshold)
        self.session.figures.give("residual_norm", self._norm or 0.0, int(self._norm is not None))

    def report(self) -> PeerReport:
        """What this rank has done since the last call. The figures of the master are counted where they are given."""
        amounts = self.session.figures.take() if self.number else {}
        done = PeerReport(self._samples, self._loss, amounts)
        self._samples, self._loss = 0, 0.0
        return done

    def count_updates(self) -> None:
        """Count the messages that were applied, own ones too, as updates."""
        index = self._index + self.exchange.replica.applied
        self.session.counters.updated(count=index - self.state.index)
        self.state.index = index

    def save(self) -> None:
        """Have all ranks save a checkpoint at the next meeting."""
        self.save_wanted = True

    def _part_done(self, part: slice, gradient: Array) -> None:
        self.compressor.take(part, gradient)
        self.exchange.collect()

    def _layer_done(self, part: slice) -> None:
        self.exchange.collect()

    def _warn_of_coarse_steps(self) -> None:
        if not isinstance(self.compressor, Thresholds):
            return
        for number, settings in self.session.schedule.trained.items():
            step = self.compressor.step_at(self._rate_of_entries(settings, len(self.members)))
            if step < COARSE:
                line = f"stage {number}: rate x threshold is only {step} units of 2^-26: coarse steps"
                self.session.journal.warn(line)


def _compressor(session: Session, options: SparseDelta) -> Compressor:
    """A compressor that emits the largest entries of chunks, or what exceeds a threshold."""
    residual, numbers, device = session.state.local["residual"], session.state.local_numbers, session.device
    if not (options.target_density and "threshold" in numbers):  # else it is what it has been adapted to
        numbers["threshold"] = options.threshold
    if options.top_k:
        return largest(session, residual, options.top_k, options.chunk, options.bits, options.codec)
    target = 0.0 if device.phantom else options.target_density
    how = (options.bits, options.codec, target, options.clip, device.emit, device.host_words)
    return Thresholds(residual, numbers, *how)
