"""A peer's conversation: messages sent, what comes in applied, and every wait a receiving one."""

from collections.abc import Callable
from typing import Any

from mpitrain.algorithms import SparseDelta
from mpitrain.compression.message import WireForm
from mpitrain.compression.residual import Entries
from mpitrain.mpi.tags import Tag
from mpitrain.protocols.messages import TO_PEER, FromPeer, Given, Meeting, Reached, Totals, pack
from mpitrain.protocols.peers.mail import Inbox, Outbox
from mpitrain.protocols.peers.replica import TRAILER, Replica
from mpitrain.protocols.peers.rounds import END
from mpitrain.protocols.peers.tally import Tally
from mpitrain.training.context import Session

#: Messages of a peer that wait here where a round's are applied by rank: that of the round, and that of the next one.
#: Less room would be filled by peers that are ahead, and keep out the message that is waited for.
AHEAD = 2


class DeltaExchange:
    """Replica, mail and messages of one rank. `at_once`: messages are applied when they come, else when asked for."""

    def __init__(self, session: Session, wire: WireForm, at_once: bool) -> None:
        options = SparseDelta.of(session.config.algorithm)
        transport, state = session.transport, session.state
        self._transport, self._at_once = transport, at_once
        self.master = session.members[0]
        self.peers = [member for member in session.members if member != transport.rank]
        self.replica = Replica(state, session.members, transport.rank, wire, session.device)
        most = wire.capacity + TRAILER.size
        self.outbox = Outbox(transport, Tag.DELTA, self.peers, options.window, most)
        room = options.window if at_once else max(options.window, AHEAD)
        self.inbox = Inbox(transport, Tag.DELTA, self.peers, room * len(self.peers), most)
        self.tally = Tally(session.counters, state.theta.size, state.theta.itemsize)
        self._figures = session.figures
        self._told: list[tuple[Any, bytes]] = []
        self.reached = 0  # the round that the master has told of
        self.meeting, self.requested = 0, -1  # numbers: of the next meeting, of the last one that was asked for
        self.there: dict[int, int] = {}  # the meeting to which each peer has come
        self.round_requests = False  # whether a message of this round, or its sender, asks for a meeting

    # ---- out

    def send(self, entries: Entries, step: int, threshold: float, calls: bool) -> int:
        """Apply own entries and send them to every peer; the bytes of the message. The window must not be full."""
        self.replica.apply_own(entries, step)
        message = self.replica.write(entries, step, threshold, calls, self.outbox.buffer)
        self.outbox.send(message)
        return int(message.nbytes)

    def tell(self, to: list[int], message: FromPeer) -> None:
        """Send a message beside the deltas."""
        told = pack(message)
        self._told += [(self._transport.send_matched(peer, TO_PEER.tag, told), told) for peer in to]

    def told(self) -> bool:
        """Whether all that was told has been taken."""
        self._told = [sent for sent in self._told if not sent[0].Test()]
        return not self._told

    # ---- in

    def collect(self) -> bool:
        """Let messages come in without touching the weights; whether any came."""
        return bool(self.peers) and self.inbox.collect()

    def receive(self) -> bool:
        """Take what has come; whether there was anything."""
        found = self.collect()
        if self._at_once:
            for peer in self.peers:
                while self.take_from(peer):
                    found = True
        return self._listen() or found

    def take_from(self, peer: int) -> bool:
        """Apply the next message of a peer, if it has come. Raises WireError naming the peer when it is not right."""
        message = self.inbox.take(peer)
        if message is None:
            return False
        self.round_requests |= self.replica.read(message, peer)
        self.inbox.done(peer)
        return True

    def until(
        self,
        happened: Callable[[], bool],
        what: str,
        whom: Callable[[], list[int]] | None = None,
        any_sign: bool = True,
    ) -> None:
        """Receive until something happens that needs `whom`, by default all peers.

        Raises Overdue naming those that are silent after the deadline, which begins anew with `any_sign` of life.
        """
        self._transport.until(happened, what, whom or self.peers, lambda: self.receive() and any_sign)

    def _listen(self) -> bool:
        found = False
        while self.peers and (arrived := TO_PEER.poll(self._transport)) is not None:
            self._heed(arrived[0], arrived[1].message)
            found = True
        return found

    def _heed(self, sender: int, message: FromPeer) -> None:
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
