"""The elastic centre by messages, where MPI serves no one-sided access while the target computes.

A worker's Claim is answered by its samples' place and x̃, piece by piece; what it adds comes piece by piece, too, and
the last is answered by Added. A message goes before each piece, with its length and checksum. Rank 0 holds two pieces a
worker at most, whatever is under way, and treats a worker's messages in order: a worker reads what it has added. Where
MPI takes vectors from GPU memory, x̃ and the pieces lie there.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mpitrain.device.cpu import CPU, Cpu
from mpitrain.errors import WireError
from mpitrain.flat import BLOCK, GPU_BLOCK, Array, blocks
from mpitrain.mpi.tags import Tag
from mpitrain.protocols.elastic_centre import Kept, Take
from mpitrain.protocols.messages import TO_WORKER, Added, Claim, FromWorker, Move, Piece, Place
from mpitrain.protocols.orders import Orders
from mpitrain.sampling.queue import Work

if TYPE_CHECKING:
    from mpitrain.mpi import Transport


class AskingCentre:
    """A worker's side."""

    def __init__(self, transport: "Transport", orders: Orders, size: int, take: Take, device: Cpu = CPU) -> None:
        self._transport, self._orders, self._take = device.transport(transport), orders, take
        self.direct, self._checksum = device.direct, device.checksum
        self.pieces = list(blocks(size, GPU_BLOCK if self.direct else BLOCK))
        self._sending: list[Any] = []

    def claim(self, minibatches: int, worker: int) -> tuple[list[Work], int]:
        self._orders.tell(Claim(worker, minibatches))
        place = self._orders.answer(Place, "samples and the centre").samples
        return self._take(place, minibatches, worker)[0], place

    def read(self, piece: slice, out: Array) -> None:
        master = self._orders.master
        told = self._orders.answer(Piece, "the centre")
        if told.nbytes != out.nbytes:
            raise WireError(f"rank {master} sends {told.nbytes} bytes of the centre, expected {out.nbytes}")
        self._transport.receive_into(master, Tag.VECTOR, out, "the centre")
        if self._checksum(out) != told.checksum:
            raise WireError(f"rank {master} sent a piece of the centre that does not match its checksum")

    def add(self, piece: slice, d: Array) -> None:
        if piece.start == 0:
            self._orders.unconfirmed += 1
        self._orders.tell(Move(d.nbytes, self._checksum(d)))
        self._sending.append(self._transport.send(self._orders.master, Tag.VECTOR, d))

    def progress(self) -> None:
        self._sending = [request for request in self._sending if not request.Test()]

    def settle(self) -> None:
        for request in self._sending:
            self._transport.wait(request, "a move of the centre to leave", whom=[self._orders.master])
        self._sending.clear()

    def complete(self) -> None:
        self.settle()
        self._orders.until(lambda: not self._orders.unconfirmed, "the centre to be moved")


@dataclass
class _Transfer:
    """A vector on its way from or to a worker: the number of the piece that moves, and memory for it."""

    buffer: Array
    number: int = 0
    request: Any = None


@dataclass
class _Worker:
    """What the master has under way with one worker; claims wait until all that is announced has been added."""

    push: _Transfer | None = None
    pull: _Transfer | None = None
    announced: deque[Move] = field(default_factory=deque)
    claims: deque[Claim] = field(default_factory=deque)


class ServingCentre(Kept):
    """The master's side."""

    patient = False

    def __init__(self, transport: "Transport", workers: list[int], theta: Array, take: Take, device: Cpu = CPU) -> None:
        super().__init__(theta.size, theta.dtype, take, device if device.direct else CPU)
        self._transport = device.transport(transport)
        self._workers = {worker: _Worker() for worker in workers}
        self._spare: list[Array] = []

    def take(self, sender: int, message: FromWorker) -> bool:
        match message:
            case Claim():
                self._workers[sender].claims.append(message)
            case Move():
                self._workers[sender].announced.append(message)
            case _:
                return False
        return True

    def serve(self) -> bool:
        busy = False
        for rank, worker in self._workers.items():
            if worker.announced:
                busy |= self._receive(rank, worker, worker.announced[0])
            if worker.pull is not None:
                busy |= self._send(rank, worker, worker.pull)
            elif worker.claims and not worker.announced:
                self._answer(rank, worker)
                busy = True
        return busy

    def _transfer(self) -> _Transfer:
        buffer = self._spare.pop() if self._spare else np.empty_like(self.theta[self.pieces[0]])
        return _Transfer(buffer)

    def _answer(self, rank: int, worker: _Worker) -> None:
        claim = worker.claims.popleft()
        taken, after = self._take(self._place, claim.minibatches, claim.worker)
        TO_WORKER.post(self._transport, rank, Place(self._place))
        self._place = after
        worker.pull = self._transfer() if taken else None

    def _send(self, rank: int, worker: _Worker, pull: _Transfer) -> bool:
        if pull.request is not None and not pull.request.Test():
            return False
        if pull.number == len(self.pieces):
            worker.pull = None
            self._spare.append(pull.buffer)
            return True
        piece = self.pieces[pull.number]
        out = pull.buffer[: piece.stop - piece.start]
        np.copyto(out, self.theta[piece])
        TO_WORKER.post(self._transport, rank, Piece(out.nbytes, self._device.checksum(out)))
        pull.request = self._transport.send(rank, Tag.VECTOR, out)
        pull.number += 1
        return True

    def _receive(self, rank: int, worker: _Worker, move: Move) -> bool:
        push = worker.push = worker.push or self._transfer()
        piece = self.pieces[push.number]
        d = push.buffer[: piece.stop - piece.start]
        if push.request is None:
            if move.nbytes != d.nbytes:
                raise WireError(f"rank {rank} sends {move.nbytes} bytes of a move, expected {d.nbytes}")
            push.request = self._transport.start_receive(rank, Tag.VECTOR, d)
            return True
        if not push.request.Test():
            return False
        if self._device.checksum(d) != move.checksum:
            raise WireError(f"rank {rank} sent a move of the centre that does not match its checksum")
        self.add(piece, d)
        worker.announced.popleft()
        push.number, push.request = push.number + 1, None
        if push.number == len(self.pieces):
            worker.push = None
            self._spare.append(push.buffer)
            TO_WORKER.post(self._transport, rank, Added())
        return True
