"""The elastic centre by messages, where MPI serves no one-sided access while the target computes.

A worker's CLAIM is answered by its samples' place and x̃, piece by piece; its PUSH is followed by d, piece by piece, and
answered by ADDED. Rank 0 holds two pieces a worker at most, whatever is under way, and treats a worker's notes in
order: a worker reads what it has added. Where MPI takes vectors from GPU memory, x̃ and the pieces lie there.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mpitrain.assignments import Work
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.flat import BLOCK, GPU_BLOCK, Array, blocks
from mpitrain.protocols.elastic_centre import Kept
from mpitrain.protocols.orders import TO_WORKER, VECTOR, Orders
from mpitrain.protocols.wire import Kind, Note
from mpitrain.supply import Supply

if TYPE_CHECKING:
    from mpitrain.mpi import Transport


class AskingCentre:
    """A worker's side."""

    def __init__(self, transport: "Transport", orders: Orders, size: int, supply: Supply, device: Cpu = CPU) -> None:
        self._transport, self._orders, self._supply = device.transport(transport), orders, supply
        self.direct = device.direct
        self.pieces = list(blocks(size, GPU_BLOCK if self.direct else BLOCK))
        self._sending: list[Any] = []

    def claim(self, minibatches: int, worker: int) -> tuple[list[Work], int]:
        self._orders.tell(Note(Kind.CLAIM, index=worker, minibatches=minibatches))
        answer = self._orders.answer("samples and the centre")
        return self._supply.take(answer.start, minibatches, worker)[0], answer.start

    def read(self, piece: slice, out: Array) -> None:
        self._transport.receive_into(self._orders.master, VECTOR, out, "the centre")

    def add(self, piece: slice, d: Array) -> None:
        if piece.start == 0:
            self._orders.tell(Note(Kind.PUSH))
            self._orders.unconfirmed += 1
        self._sending.append(self._transport.send(self._orders.master, VECTOR, d))

    def progress(self) -> None:
        self._sending = [request for request in self._sending if not request.Test()]

    def settle(self) -> None:
        for request in self._sending:
            self._transport.wait(request, "a move of the centre to leave")
        self._sending.clear()

    def complete(self) -> None:
        self.settle()
        self._orders.until(lambda: not self._orders.unconfirmed, "the centre to be moved")


@dataclass
class _Transfer:
    """A vector on its way from or to a worker: what is left of it, and the piece that is moving."""

    left: list[slice]
    buffer: Array
    moving: slice | None = None
    request: Any = None


@dataclass
class _Worker:
    """What the master has under way with one worker; claims wait until its push is over."""

    push: _Transfer | None = None
    pull: _Transfer | None = None
    claims: list[Note] = field(default_factory=list)


class ServingCentre(Kept):
    """The master's side."""

    patient = False

    def __init__(
        self, transport: "Transport", workers: list[int], theta: Array, supply: Supply, device: Cpu = CPU
    ) -> None:
        super().__init__(theta.size, theta.dtype, supply, device if device.direct else CPU)
        self._transport = device.transport(transport)
        self._workers = {worker: _Worker() for worker in workers}
        self._spare: list[Array] = []

    def take(self, sender: int, note: Note) -> bool:
        if note.kind == Kind.CLAIM:
            self._workers[sender].claims.append(note)
        elif note.kind == Kind.PUSH:
            self._workers[sender].push = self._transfer()
        return note.kind in (Kind.CLAIM, Kind.PUSH)

    def serve(self) -> bool:
        busy = False
        for rank, worker in self._workers.items():
            if worker.push is not None:
                busy |= self._receive(rank, worker, worker.push)
            if worker.pull is not None:
                busy |= self._send(rank, worker, worker.pull)
            elif worker.claims and worker.push is None:
                self._answer(rank, worker)
                busy = True
        return busy

    def _transfer(self) -> _Transfer:
        buffer = self._spare.pop() if self._spare else np.empty_like(self.theta[self.pieces[0]])
        return _Transfer(list(self.pieces), buffer)

    def _answer(self, rank: int, worker: _Worker) -> None:
        note = worker.claims.pop(0)
        taken, after = self._supply.take(self._place, note.minibatches, note.index)
        self._transport.post(rank, TO_WORKER, Note(Kind.WORK, start=self._place).pack())
        self._place = after
        worker.pull = self._transfer() if taken else None

    def _send(self, rank: int, worker: _Worker, pull: _Transfer) -> bool:
        if pull.request is not None and not pull.request.Test():
            return False
        if not pull.left:
            worker.pull = None
            self._spare.append(pull.buffer)
            return True
        piece = pull.left.pop(0)
        out = pull.buffer[: piece.stop - piece.start]
        np.copyto(out, self.theta[piece])
        pull.request = self._transport.send(rank, VECTOR, out)
        return True

    def _receive(self, rank: int, worker: _Worker, push: _Transfer) -> bool:
        if push.moving is not None:
            if not push.request.Test():
                return False
            # x̃ ← x̃ + d
            d = push.buffer[: push.moving.stop - push.moving.start]
            np.add(self.theta[push.moving], d, out=self.theta[push.moving])
            push.moving = None
        if not push.left:
            worker.push = None
            self._spare.append(push.buffer)
            self._transport.post(rank, TO_WORKER, Note(Kind.ADDED).pack())
            return True
        push.moving = push.left.pop(0)
        piece = push.buffer[: push.moving.stop - push.moving.start]
        push.request = self._transport.start_receive(rank, VECTOR, piece)
        return True
