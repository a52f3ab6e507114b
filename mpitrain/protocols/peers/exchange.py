"""What a peer sends and receives: it applies deltas as they come, and goes on receiving in every wait."""

from typing import Any

from mpitrain.algorithms import SparseDelta
from mpitrain.compression.message import WireForm
from mpitrain.monitoring.counters import Counters
from mpitrain.protocols.messages import TO_PEER, FromPeer, Given, Meeting, Reached, Totals, pack
from mpitrain.protocols.peers.deltas import Deltas
from mpitrain.protocols.peers.replica import Replica
from mpitrain.protocols.peers.rounds import END
from mpitrain.training.context import Session


class DeltaExchange(Deltas):
    """The deltas of a training's session, and the other messages between peers."""

    def __init__(self, session: Session, wire: WireForm, at_once: bool) -> None:
        options, state = SparseDelta.of(session.config.algorithm), session.state
        rank, members = session.transport.rank, session.members
        replica = Replica(state.theta, state.beside["counts"], members, rank, wire, session.device)
        super().__init__(session.transport, replica, options.window, options.patience, at_once)
        self.master = members[0]
        self.tally = Tally(session.counters, state.theta.size, state.theta.itemsize)
        self._figures = session.figures
        self._told: list[tuple[Any, bytes]] = []
        self.reached = 0  # the round at which the master is, by its messages
        self.meeting, self.requested = 0, -1  # numbers: of the next meeting, of the last one that was asked for
        self.there: dict[int, int] = {}  # the meeting to which each peer has come

    def tell(self, to: list[int], message: FromPeer) -> None:
        """Send a message that is no delta."""
        told = pack(message)
        self._told += [(self.transport.send_matched(peer, TO_PEER.tag, told), told) for peer in to]

    def told(self) -> bool:
        """Whether all messages of `tell` have been taken."""
        self._told = [sent for sent in self._told if not sent[0].Test()]
        return not self._told

    def all_taken(self) -> bool:
        return self.told() and super().all_taken()

    def receive(self) -> bool:
        found = super().receive()
        while self.peers and (arrived := TO_PEER.poll(self.transport)) is not None:
            self._handle(arrived[0], arrived[1].message)
            found = True
        return found

    def _handle(self, sender: int, message: FromPeer) -> None:
        match message:
            case Given(amounts):
                self._figures.add(sender, amounts)
            case Totals():
                self.tally.take(sender, message)
            case Reached(place):
                self.reached = max(self.reached, place)
            case Meeting(number, reason):
                self.there[sender] = number
                if reason != "done":
                    self.requested = max(self.requested, number)
                elif sender == self.master:
                    self.reached = END


class Tally:
    """The master's sums over all peers' reports. Reports are cumulative; `counters` get what is new in them.

    `length` is the number of parameters, `itemsize` the bytes of one in a dense exchange.
    """

    def __init__(self, counters: Counters, length: int, itemsize: int) -> None:
        self._counters, self._length, self._itemsize = counters, length, itemsize
        self._reports: dict[int, Totals] = {}

    def take(self, rank: int, report: Totals) -> None:
        """Count a rank's report, unless it is an old one that came late."""
        before = self._reports.get(rank, Totals())
        if report.minibatches < before.minibatches or report == before:
            return
        self._reports[rank] = report
        if report.minibatches > before.minibatches:
            self._counters.trained(report.samples - before.samples, report.loss - before.loss)
        self._describe(rank, before, report)

    def _describe(self, rank: int, before: Totals, now: Totals) -> None:
        residual = now.residual if self._counters.measures else None
        give = self._counters.figures.give
        give("threshold", now.threshold, 1, rank)
        give("residual_norm", residual or 0.0, int(residual is not None), rank)
        minibatches, elements = now.minibatches - before.minibatches, now.elements - before.elements
        if not minibatches:
            return
        nbytes, messages = now.nbytes - before.nbytes, now.messages - before.messages
        turns = now.turns - before.turns
        give("density", elements, self._length * turns, rank)
        give("bytes_per_minibatch", nbytes, minibatches, rank)
        give("compression_ratio", self._length * self._itemsize * turns, nbytes, rank)
        give("bits_per_element", 8 * nbytes, elements, rank)
        give("emissions_skipped", turns - messages, rank=rank)
