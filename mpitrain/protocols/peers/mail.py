"""Messages between peers: at most a window of them in transit to each peer, and none received beyond a fixed memory.

Sends are synchronous-mode: complete when the receiver has matched them, so that a rank knows what is still on its way
and the memory of a slow receiver is not filled. Receives are matched probes into memory kept for the purpose.
"""

from collections import deque
from typing import Any

import numpy as np

from mpitrain.errors import WireError
from mpitrain.flat import Array
from mpitrain.mpi import Transport


class Outbox:
    """The same message to all peers, from a ring of `window` buffers of `capacity` bytes.

    MPI keeps the order, so the next buffer is free when the message sent `window` messages ago has reached everybody.
    """

    def __init__(self, transport: Transport, tag: int, peers: list[int], window: int, capacity: int) -> None:
        self._transport, self._tag, self.peers = transport, tag, peers
        self._buffers = [np.empty(capacity, dtype=np.uint8) for _ in range(window)]
        self._sends: list[dict[int, Any]] = [{} for _ in range(window)]
        self._messages = list(self._buffers)  # the part of each buffer that was sent
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

    def on_their_way(self) -> list[int]:
        """The peers that have not taken everything."""
        return sorted({peer for slot in range(len(self._sends)) for peer in self._under_way(slot)})

    def send(self, message: Array) -> None:
        """Start sending a part of `buffer` to every peer."""
        self._messages[self.sent % len(self._sends)] = message
        self._sends[self.sent % len(self._sends)] = {
            peer: self._transport.send_matched(peer, self._tag, message) for peer in self.peers
        }
        self.sent += 1

    def since(self, number: int) -> list[Array]:
        """The messages from this number on. Raises WireError if there are more than the `window` that is kept."""
        if self.sent - number > len(self._messages):
            raise WireError(f"message {number} was sent too long ago to be sent again")
        return [self._messages[each % len(self._messages)] for each in range(number, self.sent)]

    def _under_way(self, slot: int) -> list[int]:
        sends = self._sends[slot] = {peer: send for peer, send in self._sends[slot].items() if not send.Test()}
        return list(sends)


class Inbox:
    """Messages that have come and are not yet taken: at most `most`, each of at most `capacity` bytes, by sender."""

    def __init__(self, transport: Transport, tag: int, peers: list[int], most: int, capacity: int) -> None:
        self._transport, self._tag, self._most, self._capacity = transport, tag, most, capacity
        self._queues: dict[int, deque[tuple[Any, Array, Array]]] = {peer: deque() for peer in peers}
        self._spare: list[Array] = []
        self._drawn: Array | None = None  # the memory that `_allot` gave last
        self.held = 0

    def collect(self) -> bool:
        """Start receiving what waits; whether anything did."""
        before = self.held
        while self.held < self._most and (arrived := self._transport.match(self._tag, self._allot)) is not None:
            sender, request, message = arrived
            assert self._drawn is not None
            self._queues[sender].append((request, message, self._drawn))
            self.held += 1
        return self.held > before

    def take(self, sender: int) -> Array | None:
        """The next message of a peer, None before all of it has come. Call `done` once it has been read."""
        queue = self._queues[sender]
        return queue[0][1] if queue and queue[0][0].Test() else None

    def done(self, sender: int) -> None:
        """The message that `take` gave has been read."""
        self._spare.append(self._queues[sender].popleft()[2])
        self.held -= 1

    def _allot(self, sender: int, count: int) -> Array:
        if sender not in self._queues:
            raise WireError(f"rank {sender} is no peer of this training")
        if count > self._capacity:
            raise WireError(f"rank {sender} sent {count} bytes, {self._capacity} are the most for this network")
        memory = self._spare.pop() if self._spare else np.empty(0, dtype=np.uint8)
        if memory.size < count:
            memory = np.empty(min(2 * count, self._capacity), dtype=np.uint8)
        self._drawn = memory
        return memory
