"""A replica and the mail that keeps it equal to its peers'."""

from collections.abc import Callable
from functools import partial

from mpitrain.compression.residual import Entries
from mpitrain.errors import RankLost
from mpitrain.mpi import Transport
from mpitrain.mpi.tags import Tag
from mpitrain.mpi.waiting import Whom
from mpitrain.protocols.peers.mail import Inbox, Outbox
from mpitrain.protocols.peers.replica import TRAILER, Replica

#: How many messages of a peer are held if messages are applied round by round: that of this round and that of the next.
#: With less room, messages of peers that are ahead would keep out the one that is waited for.
AHEAD = 2


class Deltas:
    """Sends own entries to the other members of `replica`, and applies theirs.

    `window` is the most messages in transit to a peer, `patience` how many vectors may go by unsent while a window is
    full. `at_once`: messages are applied as they come; otherwise in `take_round`.
    """

    def __init__(self, transport: Transport, replica: Replica, window: int, patience: int, at_once: bool) -> None:
        self.transport, self.replica, self._at_once = transport, replica, at_once
        self.peers = [member for member in replica.sums if member != transport.rank]
        most = replica.wire.capacity + TRAILER.size
        self.outbox = Outbox(transport, Tag.DELTA, self.peers, window, most)
        room = window if at_once else max(window, AHEAD)
        self.inbox = Inbox(transport, Tag.DELTA, self.peers, room * len(self.peers), most)
        self._most_unsent = self._may_go_unsent = patience
        self.computing = False  # if true, `collect` reports no lost rank: a gradient goes into the residual whole
        self.round_requests = False  # whether a message of this round, or its sender, asks for a meeting

    # ---- out

    def may_send(self) -> bool:
        """Whether the next message may be sent now. With a full window this waits only once `patience` is used up."""
        if self.outbox.awaited() and self._may_go_unsent == 0:
            self.await_window()
        now = not self.outbox.awaited()
        self._may_go_unsent = self._most_unsent if now else self._may_go_unsent - 1
        return now

    def await_window(self) -> None:
        """Receive until the next message may be sent. Raises Overdue naming the peers that do not take theirs."""
        self.until(lambda: not self.outbox.awaited(), "it to take messages", self.outbox.last_awaited, any_sign=False)

    def send(self, entries: Entries, step: int, threshold: float, calls: bool = False, turns: int = 0) -> int:
        """Apply own entries and send them to every peer; returns the bytes of the message. The window must not be full.
        `turns`: how many turns this rank has done; `calls`: it calls for a meeting."""
        self.replica.apply_own(entries, step)
        message = self.replica.write(entries, step, threshold, calls, self.outbox.buffer, turns)
        self.outbox.send(message)
        return int(message.nbytes)

    # ---- in

    def collect(self) -> bool:
        """Let messages come in without touching the weights; whether any came."""
        try:
            return bool(self.peers) and self.inbox.collect()
        except RankLost:
            if not self.computing:
                raise
            return False

    def receive(self) -> bool:
        """Take what has come; whether there was anything."""
        found = self.collect()
        if self._at_once:
            for peer in self.peers:
                while self.take_from(peer):
                    found = True
        return found

    def take_from(self, peer: int) -> bool:
        """Apply the next message of a peer, if it has come. Raises WireError naming the peer when it is not right."""
        message = self.inbox.take(peer)
        if message is None:
            return False
        self.round_requests |= self.replica.read(message, peer)
        self.inbox.done(peer)
        return True

    def take_round(self) -> None:
        """Apply a message of every peer, in their order."""
        for peer in self.peers:
            self.until(partial(self.take_from, peer), "its message of this round", [peer], any_sign=False)

    def until(self, happened: Callable[[], bool], what: str, whom: Whom = None, any_sign: bool = True) -> None:
        """Receive until something happens that needs `whom`, by default all peers.

        Raises Overdue naming those that are silent after the deadline, which begins anew with `any_sign` of life.
        """
        self.transport.until(happened, what, whom or self.peers, lambda: self.receive() and any_sign)

    # ---- the nonblocking consensus: after both, nothing is in transit

    def await_taken(self, what: str, whom: Whom = None) -> None:
        """Receive until all that this rank has sent is taken."""
        self.until(self.all_taken, what, whom)

    def all_taken(self) -> bool:
        """Whether peers have taken all that this rank has sent."""
        return not self.outbox.on_their_way()

    def settle(self, what: str) -> None:
        """Receive until all members come here, and until all is applied."""
        barrier = self.transport.comm.Ibarrier()
        self.until(lambda: bool(barrier.Test()), what)
        self.receive()
        self.until(lambda: not self.inbox.held, "the last messages to arrive")
