"""Ranks that train by themselves and average, all at the same step: synchronous EASGD, block momentum.

Each rank takes its share of every minibatch with its own xⁱ, and holds the centre, which moves by sums over all ranks:
while a gradient is computed, or between two steps. The algorithm's rule (`algorithms.roles.AveragingRule`) says what is
summed, and how the sums move the centre.
"""

import msgspec
import numpy as np

from mpitrain.algorithms.roles import AveragingRule
from mpitrain.checkpoint.state import Numbers, Vectors, checked
from mpitrain.flat import Array, block_of, block_pairs, block_slices
from mpitrain.models.model import Consumer
from mpitrain.mpi.collectives import CountedCollectives
from mpitrain.mpi.communicator import Request
from mpitrain.protocols.compressed import CompressedCentre
from mpitrain.sampling.queue import Natural, Row, Work, of_rows, to_rows
from mpitrain.training.context import Session
from mpitrain.training.loop import Together, warn

PIECE = 1 << 20  # elements of one sum over the ranks


def run(session: Session) -> None:
    """Train until all samples are served or a stop is asked for. Collective over all members."""
    warn(session, len(session.members))
    session.state.to_device(session.device.to_device)
    how = "sparse messages" if session.config.algorithm.sparse else "allreduce"
    session.say_exchange(how if len(session.members) > 1 else "none")
    AveragingStepper(session).train()


class CommonCentre:
    """The centre that `ranks` ranks hold alike, and the sums over them by which it moves as their `rule` says.

    `vectors` are the centre's, by name. `all_or_nothing`: nothing moves before all sums are complete, since a lost rank
    may keep some of them from completing.
    """

    def __init__(
        self,
        transport: CountedCollectives,
        rule: AveragingRule,
        vectors: Vectors,
        ranks: int,
        all_or_nothing: bool = False,
    ) -> None:
        self._transport, self._rule, self._vectors, self._ranks = transport, rule, vectors, ranks
        self._all_or_nothing = all_or_nothing
        self._sums: list[tuple[list[Request], slice]] = []

    def start(self, eta: float, t: int) -> None:
        """Start the sums of an exchange, at the learning rate `eta` and the step t."""
        theta = self._vectors["theta"]
        self._rule.begin(eta, self._ranks)
        for piece in block_slices(slice(0, theta.size), PIECE):
            for b in block_slices(piece, block_of(theta)):
                self._rule.offer(b, theta[b], t)
            summed = self._rule.summed if self._ranks > 1 else []
            self._sums.append(([self._transport.start_sum(vector[piece]) for vector in summed], piece))

    def progress(self) -> None:
        """Let the sums advance."""
        for requests, _ in self._sums:
            for request in requests:
                request.Test()

    def end(self) -> None:
        """Wait for the sums, piece by piece, and move the centre by them."""
        if self._all_or_nothing:
            self._await([request for requests, _ in self._sums for request in requests])
        for requests, piece in self._sums:
            self._await(requests)
            for b in block_slices(piece, block_of(self._vectors["theta"])):
                self._rule.take(b, {name: vector[b] for name, vector in self._vectors.items()}, self._ranks)
        self._sums.clear()

    def _await(self, requests: list[Request]) -> None:
        for request in requests:
            self._transport.wait(request, "the other ranks' parameters")


class AveragingPast(msgspec.Struct, frozen=True):
    """A rank's numbers in a checkpoint; see `AveragingStepper`."""

    t: Natural
    since: Natural
    in_hand: list[Row]


class AveragingStepper(Together):
    """One rank's own vectors and its copy of the centre; all ranks take their shares of one minibatch after another."""

    saves = False  # not by itself: all ranks save together, once the first has told them to

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.transport = session.device.transport(session.transport)
        self.options = session.config.algorithm
        seed, x = session.config.initial_seed, self.state.theta
        if session.starts_apart:
            x = session.device.to_device(session.network.initial(seed + 1 + self.part, x.dtype))
        vectors = self.state.vectors()
        self.worker = self.options.averaging(x, vectors, len(self.ranks), session.device.fast)
        self.centre: CommonCentre | CompressedCentre
        if self.options.sparse:
            self.centre = CompressedCentre(session, self.worker, vectors)
        else:
            self.centre = CommonCentre(self.transport, self.worker, vectors, len(self.ranks), session.goes_on)
        self.state.local = self.worker.vectors
        self.t = 0
        self.since = 0  # steps since the last exchange
        self._in_hand: list[Work] = []  # minibatches whose steps the centre does not include yet
        self._eta = 0.0  # of the last step
        self._g = np.empty_like(x)
        self._small = np.zeros(4)
        self._note_numbers()

        def take(numbers: Numbers) -> None:
            past = checked(numbers, AveragingPast)
            self.t, self.since = past.t, past.since
            self.worker.began = past.t - past.since
            self._in_hand = of_rows(past.in_hand, self.state.queue.samples)
            if self._in_hand:
                planned = session.schedule.at(self._in_hand[-1].position(self.state.queue.samples)).learning_rate
                self._eta = self.options.own_rate(self.state.rate(planned), self.t - 1)
            self.worker.local.look()

        session.restore(take)  # if the checkpoint has as many ranks; else each goes on from x̃
        session.outstanding = lambda: self._in_hand

    def train(self) -> None:
        """Train until the end, or until some rank was told to stop."""
        super().train()
        if self.since and not self.worker.overlaps and not self.stopping:
            self.worker.shorten(self.since)
            self.centre.start(self._eta, self.t)
            self.centre.end()
            self.since, self._in_hand = 0, []
        self._note_numbers()

    def attend(self) -> None:
        """Do what is due between two steps; checkpoints are made by all ranks."""
        if self._saving:
            self.session.monitor.checkpoint(self.save)
        self.session.monitor.turn(self)

    def step(self, work: Work) -> float:
        """Take one step, as every rank does; returns the mean loss. All learn whether to stop, and whether to save."""
        share, worker = work.share(self.part, len(self.ranks)), self.worker
        eta = self._eta = self.options.own_rate(self.learning_rate, self.t)
        exchange = worker.due(self.t)
        self._in_hand.append(work)
        if exchange and worker.overlaps:
            self.centre.start(eta, self.t)

        def update(part: slice, gradient: Array) -> None:
            for b, g in block_pairs(part, gradient):
                worker.step(b, g, eta, self.t, exchange)
            self.centre.progress()

        loss = 0.0
        if share.count:
            loss = self.session.learner.gradient(worker.at, self._g, share, Consumer(self._g, update)) * share.count
        else:  # fewer samples than ranks: this rank moves without a gradient
            self._g.fill(0)
            update(slice(0, self._g.size), self._g)
        if exchange and not worker.overlaps:
            self.centre.start(eta, self.t)
        if exchange:
            self.centre.end()
            self.since, self._in_hand = 0, [work] if worker.overlaps else []
        self.state.index += 1
        self._small[:] = loss, share.count, self.session.stop.flag, self.session.monitor.save_due()
        self.transport.wait(self.transport.start_sum(self._small), "the other ranks' losses")
        self.t += 1
        self.since += 0 if exchange and not worker.overlaps else 1
        mean = float(self._small[0] / self._small[1])
        self.stopping, self._saving = bool(self._small[2]), bool(self._small[3])
        return mean

    def _note_numbers(self) -> None:
        self.state.local_numbers.update(t=self.t, since=self.since, in_hand=to_rows(self._in_hand))

    def save(self) -> None:
        """Save a checkpoint, as all ranks do at the same step."""
        self._note_numbers()
        self.session.save_together()
