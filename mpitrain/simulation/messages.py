"""Messages between two ranks of a simulated communicator: posted receives, matched probes, synchronous sends.

What messages cost: latencies, bandwidths, a card for each node, and random delays, for tests. And what mpi4py takes for
a buffer, as arrays.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from mpitrain.device.phantom import PhantomVector
from mpitrain.flat import Array
from mpitrain.mpi.launcher import MPI, BufSpec, BufSpecV, InPlace
from mpitrain.mpi.links import USUAL, Link
from mpitrain.simulation.scheduler import Scheduler


@dataclass(frozen=True)
class ClusterNetwork:
    """The links between two nodes and within one, by default the same; each message costs `message` seconds more.
    `jitter` is the mean of an exponentially distributed delay of every message between two ranks, and of every
    rank's part in a collective, drawn from `seed`."""

    between: Link = USUAL
    within: Link | None = None
    message: float = 0.0
    jitter: float = 0.0
    seed: int = 0

    def link(self, same_node: bool) -> Link:
        """The link of two ranks."""
        return self.within if same_node and self.within is not None else self.between


class Wires:
    """Computes when messages arrive, for all communicators of a job with its ranks on `nodes`. Each node's card sends
    one message after another, and takes one after another; within a node messages do not wait for each other."""

    def __init__(self, scheduler: Scheduler, network: ClusterNetwork, nodes: Sequence[int]) -> None:
        self.scheduler, self._network, self.nodes = scheduler, network, nodes
        self._random = np.random.Generator(np.random.Philox(network.seed))
        self._sends, self._takes = dict.fromkeys(nodes, 0.0), dict.fromkeys(nodes, 0.0)  # until when a card is busy
        self.busy = dict.fromkeys([(node, way) for node in nodes for way in ("sends", "takes")], 0.0)  # seconds so far

    def send(self, nbytes: int, source: int, target: int, action: Callable[[], None], not_before: float = 0.0) -> float:
        """Call `action` when this many bytes of one rank have arrived at the other; returns when that is."""
        _, arrival = self.passage(self.scheduler.now, nbytes, source, target)
        time = max(arrival + self.jitter(), not_before)
        self.scheduler.at(time, action)
        return time

    def passage(self, now: float, nbytes: int, source: int, target: int) -> tuple[float, float]:
        """When this many bytes, sent `now` by one rank, have left it, and when they have arrived at the other."""
        here, there = self.nodes[source], self.nodes[target]
        link = self._network.link(here == there)
        takes, late = nbytes / link.bandwidth, link.latency + self._network.message
        if here == there:
            return now + takes, now + late + takes
        self.busy[here, "sends"] += takes
        self.busy[there, "takes"] += takes
        left = self._sends[here] = max(now, self._sends[here]) + takes
        arrived = self._takes[there] = max(left + late, self._takes[there] + takes)
        return left, arrived

    def jitter(self) -> float:
        """A random delay in seconds."""
        return float(self._random.exponential(self._network.jitter)) if self._network.jitter else 0.0


class SimulatedRequest:
    """An operation of one rank. Its end wakes the rank if that has tested it; so does the test that sees the end."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake, self._seen, self._awaited, self.done = wake, False, False, False
        self._error: Exception | None = None
        self._came = MPI.PROC_NULL, MPI.ANY_TAG, 0  # source, tag, bytes

    def complete(self, came: tuple[int, int, int] | None = None, error: Exception | None = None) -> None:
        """Complete it, with source, tag and bytes of a message that `came`, or with an error that `Test` will raise."""
        self.done, self._came, self._error = True, came or self._came, error
        if self._awaited:
            self._wake()

    def Test(self, status: MPI.Status | None = None, /) -> bool:  # named as in MPI's requests
        if not self.done:
            self._awaited = True
            return False
        if self._error is not None:
            raise self._error
        if not self._seen:
            self._seen = True
            self._wake()  # what the rank does next may end its own wait
        if status is not None:
            fill(status, *self._came)
        return True


@dataclass
class SentMessage:
    """A message that has been sent. `taken` is called when its receiver has matched it."""

    source: int
    tag: int
    payload: Array
    taken: Callable[[], None] = field(default=lambda: None)


class SimulatedMatched:
    """A message that only the rank whose probe has found it can receive."""

    def __init__(self, message: SentMessage, wake: Callable[[], None]) -> None:
        self._message, self._wake = message, wake

    def Recv(self, buffer: BufSpec, /) -> None:
        copy(self._message, raw(buffer))

    def Irecv(self, buffer: BufSpec, /) -> SimulatedRequest:
        copy(self._message, raw(buffer))
        request = SimulatedRequest(self._wake)
        request.complete()
        return request


class Mailbox:
    """The messages to one rank that are not taken yet, and the receives that it has posted, both in order."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self._arrived: dict[int, OrderedDict[int, SentMessage]] = {}  # by tag, in order
        self._of_pairs: dict[tuple[int, int], deque[int]] = {}  # their numbers, by source and tag
        self._numbers = count()
        self._posted: list[tuple[int, int, Array, SimulatedRequest]] = []

    def arrive(self, message: SentMessage) -> None:
        """Deliver a message to the first posted receive that it matches, else keep it for probes. It is copied now: a
        change that the sender has made meanwhile arrives, a later change does not."""
        for number, (source, tag, memory, request) in enumerate(self._posted):
            if source in (message.source, MPI.ANY_SOURCE) and tag in (message.tag, MPI.ANY_TAG):
                del self._posted[number]
                self._receive(message, memory, request)
                return
        message.payload, number = message.payload.copy(), next(self._numbers)
        self._arrived.setdefault(message.tag, OrderedDict())[number] = message
        self._of_pairs.setdefault((message.source, message.tag), deque()).append(number)
        self.wake()

    def post(self, buffer: BufSpec, source: int, tag: int) -> SimulatedRequest:
        """Post a receive."""
        request, message = SimulatedRequest(self.wake), self._take(source, tag)
        if message is None:
            self._posted.append((source, tag, raw(buffer), request))
        else:
            self._receive(message, raw(buffer), request)
        return request

    def find(self, source: int, tag: int) -> SentMessage | None:
        """The first message that matches; if any tag does, some message."""
        if tag == MPI.ANY_TAG:
            of_tags = (self.find(source, each) for each in self._arrived)
            return next((message for message in of_tags if message is not None), None)
        found = self._arrived.get(tag)
        if not found:
            return None
        if source == MPI.ANY_SOURCE:
            return next(iter(found.values()))
        numbers = self._of_pairs.get((source, tag))
        return found[numbers[0]] if numbers else None

    def _take(self, source: int, tag: int) -> SentMessage | None:
        message = self.find(source, tag)
        if message is not None:
            del self._arrived[message.tag][self._of_pairs[message.source, message.tag].popleft()]
        return message

    def match(self, source: int, tag: int, status: MPI.Status) -> SimulatedMatched | None:
        """Take the first message that matches."""
        message = self._take(source, tag)
        if message is None:
            return None
        fill(status, message.source, message.tag, message.payload.size)
        message.taken()
        self.wake()  # what the rank does with the message may end its own wait
        return SimulatedMatched(message, self.wake)

    @staticmethod
    def _receive(message: SentMessage, memory: Array, request: SimulatedRequest) -> None:
        message.taken()
        try:
            copy(message, memory)
            request.complete((message.source, message.tag, message.payload.size))
        except MPI.Exception as error:  # raised in the receiver, which need not be the running rank
            request.complete(error=error)


def copy(message: SentMessage, memory: Array) -> None:
    """Copy a message to a buffer. Raises MPI's error where it is too long."""
    if message.payload.size > memory.size:
        raise MPI.Exception(MPI.ERR_TRUNCATE)
    np.copyto(memory[: message.payload.size], message.payload)


def fill(status: MPI.Status, source: int, tag: int, count: int) -> None:
    """Set source, tag and count of a status."""
    status.source, status.tag = source, tag
    status.Set_elements(MPI.BYTE, count)


def flat(buffer: BufSpec) -> Array:
    """The array of a buffer, which is given alone or followed by its type: flat, not copied, of its own dtype."""
    memory: Array = buffer[0] if isinstance(buffer, (list, tuple)) else buffer
    if isinstance(memory, PhantomVector):
        return memory
    array = memory if isinstance(memory, np.ndarray) else np.frombuffer(memory, dtype=np.uint8)
    if not array.flags.c_contiguous:
        raise ValueError("a buffer that is not contiguous")
    return array.reshape(-1)


def raw(buffer: BufSpec) -> Array:
    """The array of a buffer as bytes."""
    return flat(buffer).view(np.uint8)


def given(buffer: BufSpec | InPlace) -> Array | None:
    """The array that a rank gives; None for MPI.IN_PLACE."""
    specified: Array = buffer
    return None if specified is MPI.IN_PLACE else flat(specified)


def counted(buffer: BufSpecV) -> tuple[Array, list[int]]:
    """The array of [array, counts, ...], and how long its parts are, one after another."""
    specified: Array = buffer
    memory, counts = flat(specified), [int(count) for count in specified[1]]
    return memory[: sum(counts)], counts
