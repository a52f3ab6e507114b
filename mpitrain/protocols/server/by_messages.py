"""A centre by messages, where MPI serves no one-sided access while the target computes, or takes vectors from a GPU.

A worker's Claim of a centre that only adds is answered by its samples' place and a copy of x̃; what the worker pushes
comes piece by piece, and the last is answered by Added. A message with length and checksum goes before each vector. The
master treats a worker's messages in order: a worker reads what it has added.
"""

from typing import Any

import numpy as np

from mpitrain.device.cpu import CPU, Cpu
from mpitrain.flat import BLOCK, GPU_BLOCK, Array, blocks
from mpitrain.mpi import Transport
from mpitrain.mpi.tags import Tag
from mpitrain.protocols.messages import TO_WORKER, Added, Claim, FromWorker, Gradient, Move, Piece, Place
from mpitrain.protocols.server.interface import Claimed, Source
from mpitrain.protocols.server.link import Line, receive
from mpitrain.protocols.server.own import LocalCentre


class Snapshots:
    """Copies of a centre for the workers who have `asked`, each as it is at one moment."""

    def __init__(self, transport: Any, device: Cpu) -> None:
        self._transport, self._checksum = transport, device.checksum
        self.asked: list[int] = []
        self._copy: Array | None = None
        self._sends: list[Any] = []

    def send(self, centre: Array, index: int = 0) -> bool:
        """Send those who asked a copy of the centre, once the copy before has left; whether anything moved."""
        if not self.asked or (self._sends and not self._sends[-1].Test()):  # most often the last to leave
            return False
        self._sends = [send for send in self._sends if not send.Test()]
        if self._sends:
            return False
        if self._copy is None:
            self._copy = np.empty_like(centre)
        np.copyto(self._copy, centre)
        told = Piece(self._copy.nbytes, self._checksum(self._copy), index)
        for worker in self.asked:
            TO_WORKER.post(self._transport, worker, told)
            self._sends.append(self._transport.send(worker, Tag.VECTOR, self._copy))
        self.asked.clear()
        return True

    def finish(self) -> None:
        """Wait until what was sent has left."""
        for send in self._sends:
            self._transport.wait(send, "a copy of the centre to leave")


class AskingCentre:
    """A worker's face of a centre that only adds."""

    def __init__(
        self, transport: Transport, line: Line, theta: Array, source: Source, number: int, device: Cpu = CPU
    ) -> None:
        self._transport, self._line = device.transport(transport), line
        self._source, self._number = source, number
        self.direct, self._checksum = device.direct, device.checksum
        self.pieces = list(blocks(theta.size, GPU_BLOCK if self.direct else BLOCK))
        self._copy = np.empty_like(device.to_device(theta) if self.direct else theta)
        self._sending: list[Any] = []

    def claim(self, has: int = 0) -> Claimed:
        self._line.tell(Claim(has))
        place = self._line.answer(Place, "samples and the centre").samples
        return self._source.claim(place, self._number, has)[0]

    def read(self, piece: slice, out: Array) -> None:
        if piece.start == 0:
            told = self._line.answer(Piece, "the centre")
            receive(self._transport, self._checksum, self._line.master, told, self._copy, "a copy of the centre")
        np.copyto(out, self._copy[piece])

    def push(self, piece: slice, d: Array, told: Gradient | None = None) -> None:
        if piece.start == 0:
            self._line.unconfirmed += 1
        self._line.tell(Move(d.nbytes, self._checksum(d)))
        self._sending.append(self._transport.send(self._line.master, Tag.VECTOR, d))

    def progress(self) -> None:
        self._sending = [request for request in self._sending if not request.Test()]

    def settle(self) -> None:
        for request in self._sending:
            self._transport.wait(request, "a move of the centre to leave", whom=[self._line.master])
        self._sending.clear()

    def complete(self) -> None:
        self.settle()
        self._line.until(lambda: not self._line.unconfirmed, "the centre to be moved")

    def close(self) -> None:
        pass


class ServingCentre(LocalCentre):
    """The master's face of a centre that only adds."""

    nap: float | None = None
    idle_looks = 0  # workers wait for it

    def __init__(
        self, transport: Transport, workers: list[int], theta: Array, source: Source, device: Cpu = CPU
    ) -> None:
        super().__init__(theta.size, theta.dtype, source, device if device.direct else device.host)
        self._transport, self._workers = device.transport(transport), workers
        self._copies = Snapshots(self._transport, self._device)
        self._pushed = dict.fromkeys(workers, 0)  # pieces of a move that have come
        self._d = np.empty_like(self.theta[self.pieces[0]])

    def take(self, sender: int, message: FromWorker) -> bool:
        match message:
            case Claim(has):
                claimed, after = self._source.claim(self._place, self._workers.index(sender), has)
                TO_WORKER.post(self._transport, sender, Place(self._place))
                self._place = after
                self._copies.asked += [sender] if claimed.works or has else []
            case Move():
                self._add(sender, message)
            case _:
                return False
        return True

    def _add(self, sender: int, told: Move) -> None:
        piece = self.pieces[self._pushed[sender]]
        d = self._d[: piece.stop - piece.start]
        receive(self._transport, self._device.checksum, sender, told, d, "a move of the centre")
        self.push(piece, d)
        self._pushed[sender] = (self._pushed[sender] + 1) % len(self.pieces)
        if not self._pushed[sender]:
            TO_WORKER.post(self._transport, sender, Added())

    def serve(self) -> bool:
        return self._copies.send(self.theta)

    def close(self) -> None:
        self._copies.finish()
