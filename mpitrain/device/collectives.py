"""Collectives on GPU arrays: staged in pinned memory, or made of messages that a CUDA-aware MPI reads from GPU memory.

A staged operation has three stages: its input becomes final and is copied to the host; it runs; its result is copied
back, and later kernels wait for that copy. Operations, including those on host arrays, start in the order of their
requests, which is the same on every rank. `Test` of any request makes all of them progress.

All CUDA-aware MPI libraries accept device memory in messages, but few in nonblocking collectives, and blocking ones
wait without a deadline. In collectives of messages every rank owns a share of the elements. It receives the others'
terms of its share, adds them up, and sends the sum to the ranks that need it, so that in a sum over K ranks of n
elements each rank receives and sends 2(K−1)/K·n. The sum of an element is computed by one rank, so that all get the
same bits.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mpitrain.device.gpu_memory import GpuMemory, Stream, StreamEvent
from mpitrain.flat import Array, share
from mpitrain.mpi import Transport
from mpitrain.mpi.collectives import Carrier, CollectiveCall, CountedCollectives
from mpitrain.mpi.communicator import Communicator, Request
from mpitrain.mpi.tags import Tag
from mpitrain.mpi.team import Team

Steps = Iterator[Sequence[Request]]  #: a collective's steps: the requests that must complete before the next one
#: Each collective has two of these tags, one for each of its steps, so that its messages match no other's.
TAGS = 1 << 14
Shares = Sequence[slice]  # of a vector, by rank


@dataclass(frozen=True)
class Mark:
    """An event in a stream, with the interface of an MPI request."""

    event: StreamEvent

    def Test(self) -> bool:  # named as in MPI's requests
        """Whether the stream has reached the event."""
        return self.event.done


class QueuedCollective:
    """A collective in a carrier's queue, which `advance` makes advance; with the interface of an MPI request. It has
    started when its first step is done."""

    def __init__(self, advance: Callable[[], None], steps: Steps) -> None:
        self._advance, self._steps, self._pending = advance, steps, list(next(steps))
        self.started = self.done = False

    def Test(self) -> bool:  # named as in MPI's requests
        """Whether kernels launched from now on see the result."""
        self._advance()
        return self.done

    def proceed(self) -> None:
        """Advance as far as possible."""
        while not self.done:
            self._pending = [each for each in self._pending if not each.Test()]
            if self._pending:
                return
            self.started, step = True, next(self._steps, None)
            self.done, self._pending = step is None, list(step or ())


class StagedCarrier(Carrier):
    """A carrier that also takes device arrays in collectives."""

    def __init__(self, transport: CountedCollectives, device: GpuMemory) -> None:
        self._transport, self._device = transport, device
        self._waiting: deque[QueuedCollective] = deque()
        self._queues = [self._waiting]  # with those of the duplicate
        self._spare: dict[tuple[int, str], list[tuple[Array, StreamEvent]]] = {}

    def duplicate(self, transport: CountedCollectives) -> "StagedCarrier":
        duplicate = type(self)(transport, self._device)
        self._queues.append(duplicate._waiting)
        duplicate._queues = self._queues
        return duplicate

    def advance(self) -> None:
        """Make operations in progress advance."""
        for waiting in self._queues:
            for operation in tuple(waiting):
                operation.proceed()
                if not operation.started:
                    break
                if operation.done:
                    waiting.remove(operation)

    # ---- the stages

    def begin(self, comm: Communicator, call: CollectiveCall) -> Request:
        if not self._waiting and all(isinstance(array, np.ndarray) for array in call.arrays):
            return super().begin(comm, call)
        return self._enqueue(self._staged(comm, call))

    def _staged(self, comm: Communicator, call: CollectiveCall) -> Steps:
        """The steps of a collective on pinned copies; at the end, the copies back to the GPU have been started."""
        device, arrays = self._device, call.arrays
        on_device = [not isinstance(array, np.ndarray) for array in arrays]
        here = [self._pinned(a) if d else (a, device.event()) for a, d in zip(arrays, on_device, strict=True)]
        device.after(device.compute, device.leaving)
        for array, (host, _), part, there in zip(arrays, here, call.reads, on_device, strict=False):
            if there and part is not False and array.size:
                piece = slice(0, array.size) if part is True else part
                array.reshape(-1)[piece].get(stream=device.leaving, out=host[piece], blocking=False)
        yield self._settled(device.leaving)
        yield [call.begin(comm, [host for host, _ in here])]
        device.after(device.compute, device.incoming)
        for array, (host, free), back, there in zip(arrays, here, call.writes, on_device, strict=False):
            if there and back and array.size:
                array.reshape(-1).set(host, stream=device.incoming)
            if there:
                free.record(device.incoming)
                self._spare.setdefault((host.size, host.dtype.char), []).append((host, free))
        device.after(device.incoming, device.compute)

    def _enqueue(self, steps: Steps) -> Request:
        operation = QueuedCollective(self.advance, steps)
        self._waiting.append(operation)
        self.advance()
        return operation

    def _settled(self, stream: Stream) -> list[Request]:
        """A request that completes when the work that is now in the stream has run."""
        return [Mark(self._device.mark(stream))]

    def _pinned(self, array: Array) -> tuple[Array, StreamEvent]:
        """A flat pinned array of the same size, with the event of its last copy."""
        spare = self._spare.get((array.size, array.dtype.char), [])
        if spare:
            host, free = spare.pop()
            free.synchronize()
            return host, free
        return self._device.pinned(array.size, array.dtype), self._device.event()


class DirectCarrier(StagedCarrier):
    """Passes arrays in GPU memory to a CUDA-aware MPI, in messages and in collectives made of messages. Each collective
    is a method called by its name.

    MPI does not know streams. Before it may read or overwrite an array, the kernels launched so far must have run; the
    data of a completed request are visible to every kernel that is launched afterwards.
    """

    def __init__(self, transport: Transport | Team, device: GpuMemory) -> None:
        super().__init__(transport, device)
        self._messages, self._rank, self._ranks = transport, transport.rank, range(transport.size)
        self._others = [rank for rank in self._ranks if rank != self._rank]
        self._rooms: dict[tuple[int, np.dtype], list[Array]] = {}

    def begin(self, comm: Communicator, call: CollectiveCall) -> Request:
        if all(isinstance(array, np.ndarray) for array in call.arrays):
            return super().begin(comm, call)
        return self._enqueue(getattr(self, call.name)(*call.arguments))

    def settle(self, buffer: bytes | Array) -> None:
        if not isinstance(buffer, (bytes, np.ndarray)):
            self._device.compute.synchronize()

    def sum(self, array: Array) -> Steps:
        """Sum every element over all ranks, in place."""
        return self._reduced(array.reshape(-1), np.add)

    def maximum(self, array: Array) -> Steps:
        """Take every element's maximum over all ranks, in place."""
        return self._reduced(array.reshape(-1), np.maximum)

    def _reduced(self, array: Array, add: np.ufunc) -> Steps:
        tag, shares = self._tag(), self._shares(array.size)
        own = array[shares[self._rank]]
        yield from self._combined(array, own, own, shares, add, tag)
        yield self._handed(own, array, shares, self._ranks, tag + 1)

    def broadcast(self, array: Array, root: int) -> Steps:
        """The root sends each share to its owner, which sends it to the ranks that do not have it yet."""
        array = array.reshape(-1)
        tag, shares = self._tag(), self._shares(array.size)
        own = array[shares[self._rank]]
        yield self._settled(self._device.compute)
        if self._rank == root:
            yield self._sends(tag, {rank: array[shares[rank]] for rank in self._others})
        else:
            yield self._receives(tag, {root: own})
        yield self._handed(own, array, shares, [rank for rank in self._ranks if rank != root], tag + 1)

    def reduce(self, root: int, array: Array, out: Array | None) -> Steps:
        """Put the sum of the ranks' arrays into the root's `out`."""
        array, out = array.reshape(-1), None if out is None else out.reshape(-1)
        tag, shares = self._tag(), self._shares(array.size)
        mine = shares[self._rank]
        own = self._room(mine.stop - mine.start, array.dtype) if out is None else out[mine]
        yield from self._combined(array, array[mine], own, shares, np.add, tag)
        yield self._handed(own, out, shares, [root], tag + 1)
        if out is None:
            self._give_back(own)

    def gather(self, own: Array | None, out: Array, pieces: Shares) -> Steps:
        """Put the ranks' pieces into `out` on every rank. With `own=None` this rank's piece is in `out` already."""
        out = out.reshape(-1)
        tag, mine = self._tag(), out[pieces[self._rank]]
        if own is not None:
            np.copyto(mine, own.reshape(-1))
        yield self._settled(self._device.compute)
        yield self._handed(mine, out, pieces, self._ranks, tag)

    def reduce_scatter(self, array: Array, own: Array, pieces: Shares) -> Steps:
        """Put each rank's piece of the sum of the ranks' arrays into its `own`."""
        array, own = array.reshape(-1), own.reshape(-1)
        yield from self._combined(array, array[pieces[self._rank]], own, pieces, np.add, self._tag())

    def _combined(self, terms: Array, term: Array, own: Array, shares: Shares, add: np.ufunc, tag: int) -> Steps:
        """Combine this rank's share of all ranks' `terms` into `own`, which may be its own `term` itself."""
        room = self._room(own.size * len(self._others), own.dtype)
        rows = dict(zip(self._others, room.reshape(len(self._others), own.size), strict=True))
        yield self._settled(self._device.compute)
        sends = self._sends(tag, {rank: terms[shares[rank]] for rank in self._others})
        yield sends + self._receives(tag, rows)
        with self._device.incoming as stream:  # so as not to wait for everything in the compute stream
            for row in rows.values():
                add(term, row, out=own)
                term = own
        yield self._settled(stream)
        self._give_back(room)

    def _handed(
        self, own: Array, out: Array | None, pieces: Shares, wanting: Collection[int], tag: int
    ) -> list[Request]:
        """Send every rank's own piece to the `out` of the ranks that need it."""
        messages = self._sends(tag, {rank: own for rank in wanting if rank != self._rank})
        if out is not None and self._rank in wanting:
            messages += self._receives(tag, {rank: out[pieces[rank]] for rank in self._others})
        return messages

    def _sends(self, tag: int, pieces: dict[int, Array]) -> list[Request]:
        return [self._messages.begin_send(rank, tag, piece) for rank, piece in pieces.items() if piece.size]

    def _receives(self, tag: int, pieces: dict[int, Array]) -> list[Request]:
        return [self._messages.begin_receive(rank, tag, piece) for rank, piece in pieces.items() if piece.size]

    def _shares(self, size: int) -> Shares:
        return [share(size, rank, len(self._ranks)) for rank in self._ranks]

    def _tag(self) -> int:
        return Tag.COLLECTIVES + 2 * next(self._messages.numbers) % TAGS

    def _room(self, size: int, dtype: np.dtype) -> Array:
        """Memory for the data of other ranks. MPI may write to it once the compute stream, which may still use memory
        that was freed earlier, has settled."""
        spare = self._rooms.get((size, dtype), [])
        return spare.pop() if spare else self._device.cupy.empty(size, dtype)

    def _give_back(self, room: Array) -> None:
        self._rooms.setdefault((room.size, room.dtype), []).append(room)
