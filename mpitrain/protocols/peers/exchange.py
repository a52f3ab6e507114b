"""What a peer sends and receives: it applies deltas as they come, and goes on receiving in every wait."""

from typing import Any

from mpitrain.algorithms import SparseDelta
from mpitrain.compression.message import WireForm
from mpitrain.protocols.messages import TO_PEER, FromPeer, Meeting, PeerReport, Reached, pack
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
        super().__init__(session.transport, replica, options.window, options.patience, at_once, session.goes_on)
        self.master = members[0]
        self._counters = session.counters
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
            case PeerReport():
                self.count(sender, message)
            case Reached(place):
                self.reached = max(self.reached, place)
            case Meeting(number, reason):
                self.there[sender] = number
                if reason != "done":
                    self.requested = max(self.requested, number)
                elif sender == self.master:
                    self.reached = END

    def count(self, rank: int, report: PeerReport) -> None:
        """On the master: count what a rank has done."""
        if report.samples:
            self._counters.trained(report.samples, report.loss)
        self._counters.figures.add(rank, report.amounts)
