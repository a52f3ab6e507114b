"""A centre that only adds, in one process's memory, for a worker in that process or, by messages, on other ranks.

Messages are used if MPI serves no one-sided access while the target computes, or takes vectors from a GPU. A worker's
Claim is answered by the place of its samples and a copy of x̃; a worker pushes piece by piece, and the last piece is
answered by Added. The master treats a worker's messages in order, so that a worker reads what it has added.
"""

from collections.abc import Sequence

import numpy as np

from mpitrain.algorithms.elastic import move_centre
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.flat import BLOCK, GPU_BLOCK, Array, block_of, blocks
from mpitrain.mpi import Transport
from mpitrain.protocols.messages import TO_WORKER, Added, Claim, FromWorker, Gradient, Move, Piece, Place, Vectors
from mpitrain.protocols.server.interface import Centre, Claimed, Source
from mpitrain.protocols.server.link import MasterLink
from mpitrain.sampling.queue import Work


class LocalCentre(Centre):
    """x̃ in this process's own memory on the device, and the place in the queue."""

    direct = True

    def __init__(self, theta: Array, source: Source, device: Cpu = CPU) -> None:
        self._source, self._place, self._device = source, 0, device
        self.theta = device.to_device(np.zeros(theta.size, theta.dtype))
        self.pieces = list(blocks(theta.size, BLOCK if device.phantom else block_of(self.theta)))

    def put(self, theta: Array) -> None:
        self._device.upload(self.theta, theta)

    def copy(self, out: Array) -> None:
        self._device.download(self.theta, out)

    def place(self) -> int:
        return self._place

    def claim(self, has: int = 0, number: int = 0) -> Claimed:
        """Claim samples for the worker of this number."""
        claimed, self._place = self._source.claim(self._place, number, has)
        return claimed

    def read(self, piece: slice, out: Array) -> None:
        np.copyto(out, self.theta[piece])

    def push(self, piece: slice, d: Array, told: Gradient | None = None) -> None:
        """x̃ ← x̃ + d."""
        move_centre(self.theta[piece], d)


class ServingCentre(LocalCentre):
    """The master's side, by messages. `claimed`: the samples that each worker has from before a resume. `whole_moves`:
    moves are added when all of them has come, so that a lost worker's move, with its samples, counts wholly or not."""

    def __init__(
        self,
        transport: Transport,
        workers: list[int],
        theta: Array,
        source: Source,
        device: Cpu = CPU,
        claimed: Sequence[list[Work]] = (),
        whole_moves: bool = False,
    ) -> None:
        super().__init__(theta, source, device if device.direct else device.host)
        self._transport, self._workers = transport, workers
        self._vectors = Vectors(transport, self._device)
        self._copies = Snapshots(transport, self._device)
        self._pushed = dict.fromkeys(workers, 0)  # pieces of a move that have come
        self._claimed = dict(zip(workers, claimed or [[] for _ in workers], strict=True))  # not in a move yet
        self._reported = dict.fromkeys(workers, 0)  # samples that are in each worker's next move
        self._d = np.empty_like(self.theta[self.pieces[0]])
        self._moves = {worker: np.empty_like(self.theta) for worker in workers if whole_moves}

    def handle(self, sender: int, message: FromWorker) -> bool:
        match message:
            case Claim(has):
                TO_WORKER.post(self._transport, sender, Place(self._place))
                works = self.claim(has, self._workers.index(sender)).works
                self._claimed[sender] += works
                if works or has:
                    self._copies.asked.append(sender)
            case Move():
                self._add(sender, message)
            case _:
                return False
        return True

    def _add(self, sender: int, told: Move) -> None:
        piece, move = self.pieces[self._pushed[sender]], self._moves.get(sender)
        d = self._d[: piece.stop - piece.start] if move is None else move[piece]
        self._vectors.receive(sender, told, d, "a move of the centre")
        self._pushed[sender] = (self._pushed[sender] + 1) % len(self.pieces)
        if move is None:
            self.push(piece, d)
        elif not self._pushed[sender]:
            for each in self.pieces:
                self.push(each, move[each])
        if not self._pushed[sender]:
            self._forget(sender)
            TO_WORKER.post(self._transport, sender, Added())

    def trained(self, worker: int, samples: int) -> None:
        self._reported[worker] += samples

    def _forget(self, worker: int) -> None:
        """Strike the samples that this worker reported from what it has claimed: they are in the centre."""
        claimed, samples = self._claimed[worker], self._reported[worker]
        self._reported[worker] = 0
        while samples and claimed:
            used = min(samples, claimed[0].count)
            samples -= used
            claimed[:1] = [claimed[0].rest(used)] if used < claimed[0].count else []

    def untrained(self) -> list[Work]:
        return [work for claimed in self._claimed.values() for work in claimed]

    def serve(self) -> bool:
        return self._copies.send(self.theta)

    def close(self) -> None:
        self._copies.finish()


class AskingCentre(Centre):
    """A worker's side, by messages."""

    def __init__(
        self, transport: Transport, link: MasterLink, theta: Array, source: Source, number: int, device: Cpu = CPU
    ) -> None:
        self._link, self._source, self._number = link, source, number
        self._vectors, self.direct = Vectors(transport, device), device.direct
        self.pieces = list(blocks(theta.size, GPU_BLOCK if self.direct else BLOCK))
        self._copy = np.empty_like(device.to_device(theta) if self.direct else theta)

    def claim(self, has: int = 0) -> Claimed:
        self._link.tell(Claim(has))
        place = self._link.answer(Place, "samples and the centre").samples
        return self._source.claim(place, self._number, has)[0]

    def read(self, piece: slice, out: Array) -> None:
        if piece.start == 0:
            told = self._link.answer(Piece, "the centre")
            self._vectors.receive(self._link.master, told, self._copy, "a copy of the centre")
        np.copyto(out, self._copy[piece])

    def push(self, piece: slice, d: Array, told: Gradient | None = None) -> None:
        if piece.start == 0:
            self._link.unconfirmed += 1
        self._link.tell(Move(*self._vectors.sealed(d)))
        self._vectors.send(self._link.master, d)

    def progress(self) -> None:
        self._vectors.leaving()

    def settle(self) -> None:
        self._vectors.settle("a move of the centre to leave", [self._link.master])

    def complete(self) -> None:
        self.settle()
        self._link.until(lambda: not self._link.unconfirmed, "the centre to be moved")


class Snapshots:
    """Sends copies of a centre, each of one moment, to the workers in `asked`."""

    def __init__(self, transport: Transport, device: Cpu) -> None:
        self._transport, self._vectors = transport, Vectors(transport, device)
        self.asked: list[int] = []
        self._copy: Array | None = None

    def send(self, centre: Array, index: int = 0) -> bool:
        """Send those who asked a copy of the centre, once the copy before has left; whether anything moved."""
        if not self.asked or self._vectors.leaving():
            return False
        if self._copy is None:
            self._copy = np.empty_like(centre)
        np.copyto(self._copy, centre)
        told = Piece(*self._vectors.sealed(self._copy), index)
        for worker in self.asked:
            TO_WORKER.post(self._transport, worker, told)
            self._vectors.send(worker, self._copy)
        self.asked.clear()
        return True

    def finish(self) -> None:
        """Wait until what was sent has left."""
        self._vectors.settle("a copy of the centre to leave")
