"""A replica and the mail that keeps it equal to its peers': at most a window of messages in transit to each peer, and
none received beyond a fixed memory.

Sends are synchronous-mode: complete when the receiver has matched them, so that a rank knows what is still on its way
and the memory of a slow receiver is not filled. Receives are matched probes into memory kept for the purpose.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np

from mpitrain.compression.residual import Entries
from mpitrain.errors import RankLost, WireError
from mpitrain.flat import Array
from mpitrain.mpi import Transport
from mpitrain.mpi.communicator import Request
from mpitrain.mpi.tags import Tag
from mpitrain.mpi.waiting import Whom
from mpitrain.protocols.peers.replica import TRAILER, Replica

#: How many messages of a peer are held if messages are applied round by round: that of this round and that of the next.
#: With less room, messages of peers that are ahead would keep out the one that is waited for.
AHEAD = 2


class Outbox:
    """The same message to all peers, from a ring of `window` buffers of `capacity` bytes; the newest `kept` are copied.

    MPI keeps the order, so the next buffer is free when the message sent `window` messages ago has reached everybody.
    """

    def __init__(self, transport: Transport, peers: list[int], window: int, capacity: int, kept: int) -> None:
        self._transport, self.peers = transport, peers
        self._buffers = [np.empty(capacity, dtype=np.uint8) for _ in range(window)]
        self._sends: list[dict[int, Request]] = [{} for _ in range(window)]
        self._kept = deque[Array](maxlen=kept)
        self.sent = 0

    @property
    def buffer(self) -> Array:
        """Where the next message is written, once `awaited` is empty."""
        return self._buffers[self.sent % len(self._buffers)]

    def awaited(self) -> list[int]:
        """The peers that have not taken the message that lies in the next buffer."""
        return self._under_way(self.sent % len(self._buffers))

    def last_awaited(self) -> list[int]:
        """What `awaited` gave last, to name the peers: another poll would be one more event in a recording."""
        return list(self._sends[self.sent % len(self._sends)])

    def all_taken(self) -> bool:
        """Whether peers have taken everything."""
        return not any(self._under_way(slot) for slot in range(len(self._sends)))

    def send(self, message: Array) -> None:
        """Start sending a part of `buffer` to every peer."""
        slot = self.sent % len(self._sends)
        self._sends[slot] = {peer: self._transport.send_matched(peer, Tag.DELTA, message) for peer in self.peers}
        if self._kept.maxlen:
            self._kept.append(message.copy())
        self.sent += 1

    def since(self, number: int) -> list[Array]:
        """The messages from this number on. Raises WireError if there are more than are kept."""
        if self.sent - number > len(self._kept):
            raise WireError(f"message {number} was sent too long ago to be sent again")
        return list(self._kept)[len(self._kept) - (self.sent - number) :]

    def _under_way(self, slot: int) -> list[int]:
        sends = self._sends[slot] = {peer: send for peer, send in self._sends[slot].items() if not send.Test()}
        return list(sends)


class Inbox:
    """Messages that have come and are not yet taken: at most `most`, each of at most `capacity` bytes, by sender."""

    def __init__(self, transport: Transport, peers: list[int], most: int, capacity: int) -> None:
        self._transport, self._most, self._capacity = transport, most, capacity
        self._queues: dict[int, deque[tuple[Request, Array]]] = {peer: deque() for peer in peers}
        self._spare: list[Array] = []
        self.held = 0

    def collect(self) -> bool:
        """Start receiving what waits; whether anything did."""
        before = self.held
        while self.held < self._most and (arrived := self._transport.match(Tag.DELTA, self._allot)) is not None:
            sender, request, message = arrived
            self._queues[sender].append((request, message))
            self.held += 1
        return self.held > before

    def take(self, sender: int) -> Array | None:
        """The next message of a peer, None before all of it has come. Call `done` once it has been read."""
        queue = self._queues[sender]
        return queue[0][1] if queue and queue[0][0].Test() else None

    def done(self, sender: int) -> None:
        """The message that `take` gave has been read."""
        self._spare.append(self._queues[sender].popleft()[1].base)
        self.held -= 1

    def _allot(self, sender: int, count: int) -> Array:
        if sender not in self._queues:
            raise WireError(f"rank {sender} is no peer of this training")
        if count > self._capacity:
            raise WireError(f"rank {sender} sent {count} bytes, {self._capacity} are the most for this network")
        memory = self._spare.pop() if self._spare else np.empty(0, dtype=np.uint8)
        return memory if memory.size >= count else np.empty(min(2 * count, self._capacity), dtype=np.uint8)


class Deltas:
    """Sends own entries to the other members of `replica`, and applies theirs.

    `window` is the most messages in transit to a peer, `patience` how many vectors may go by unsent while a window is
    full. `at_once`: messages are applied as they come; otherwise in `take_round`. `repeats`: own ones are copied, as a
    peer that has begun to receive some when another rank is lost asks for them again.
    """

    def __init__(
        self, transport: Transport, replica: Replica, window: int, patience: int, at_once: bool, repeats: bool = False
    ) -> None:
        self.transport, self.replica, self._at_once = transport, replica, at_once
        self.peers = [member for member in replica.sums if member != transport.rank]
        most = replica.wire.capacity + TRAILER.size
        held = (window if at_once else max(window, AHEAD)) * len(self.peers)
        self.outbox = Outbox(transport, self.peers, window, most, window + held if repeats else 0)
        self.inbox = Inbox(transport, self.peers, held, most)
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

    # ---- the nonblocking consensus: when all is taken, and after `settle`, nothing is in transit

    def all_taken(self) -> bool:
        """Whether peers have taken all that this rank has sent."""
        return self.outbox.all_taken()

    def settle(self, what: str) -> None:
        """Receive until all members come here, and until all is applied."""
        barrier = self.transport.comm.Ibarrier()
        self.until(lambda: bool(barrier.Test()), what)
        self.receive()
        self.until(lambda: not self.inbox.held, "the last messages to arrive")
