"""`ranks.save` and `ranks.load`: a save is a folder, which gets its name only when it is whole.

Its `manifest.json` has the sizes and checksums of the other files; `state.h5` is rank 0's part, and `rank-00001.h5`, …
are those of the other ranks, without the arrays that equal rank 0's.
"""

import json
import os
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from mpitrain import checkpoint
from mpitrain.api.loop import users
from mpitrain.api.loop.method import Method
from mpitrain.api.loop.module import FlatModule
from mpitrain.api.loop.past import Apply, Clock, LoopNumbers, Past, part_of
from mpitrain.checkpoint import Draft, FileContent
from mpitrain.checkpoint.files import MANIFEST
from mpitrain.errors import BadInput, naming, say, some
from mpitrain.files import checksum, hdf5, writing
from mpitrain.flat import Array
from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import agreed, called_alike, of_first


class Saves:
    """Writes and reads saves, from which a training goes on. Its calls are collective; no messages may be in transit
    but the method's own. `seed` is that of the order of samples."""

    def __init__(self, transport: Transport, algorithm: str, flat: FlatModule, method: Method, seed: int) -> None:
        self._transport = transport.duplicate()  # its messages cannot meet others: ranks may make different calls
        self._transport.grace = 0.0  # a rank that is alone in a call gives up first, and names the call
        self._algorithm, self._flat, self._method, self._seed = algorithm, flat, method, seed
        self._first = transport.rank == 0

    def save(self, path: Path, clock: Clock) -> None:
        """Write a save. Raises BadInput on all ranks naming what cannot be saved or written, and leaves no new save."""
        what = self._called("ranks.save", path, clock.t if self._method.in_step else None)
        self._method.settle()
        piece = agreed(self._transport, lambda: self._piece(path, clock), what)
        piece = self._without_common(piece, what)
        draft = Draft(path.parent, path.name)
        try:
            agreed(self._transport, lambda: self._begin(draft, piece), what)
            agreed(self._transport, lambda: draft.write(part_of(self._transport.rank), piece, self._flat.layout), what)
            agreed(self._transport, lambda: draft.commit() if self._first else None, what)
        except BadInput:
            if self._first:
                draft.abandon()
            raise

    def load(self, path: Path) -> Clock:
        """Restore a save. Raises BadInput on all ranks, naming the file and the misfit; then nothing has changed."""
        transport, what = self._transport, self._called("ranks.load", path)
        # if the last save was cut short, the earlier one, which it was to replace
        whole = of_first(transport, lambda: os.fsencode(checkpoint.find(path.parent, path.name)[0]), what)
        folder = Path(os.fsdecode(whole))
        past, steps = agreed(transport, lambda: self._read(folder), what)
        for step in steps:
            step()
        if self._first and not past.same:
            line = f"saved by {some(past.ranks, 'rank')}, loaded by {transport.size}: all start from the algorithm's "
            line += f"model, rank r with the optimizer's state and the buffers of rank r modulo {past.ranks}"
            say(f"{folder}: {line}")
        return past.clock

    # ---- out

    def _called(self, call: str, path: Path, t: int | None = None) -> str:
        """Wait until all ranks make this call; return a name for its waits. Raises BadInput if the calls differ, or the
        path names no folder."""
        what = f"{call}, which all ranks call together"
        said = f"{call}({str(path)!r})" + ("" if t is None else f" after {t} batches")
        called_alike(self._transport, said, what)
        if path.name in ("", ".."):
            raise BadInput.known(f"{call}: {str(path)!r} names no folder", spoken_here=self._first)
        return what

    def _piece(self, path: Path, clock: Clock) -> FileContent:
        """This rank's part of the save. Raises BadInput naming what cannot be saved."""
        if self._first:
            _require_replaceable(path)
        arrays: dict[str, Array] = {}
        with naming("ranks.save", TypeError, RuntimeError):
            user = users.kept(self._flat, arrays)
        vectors, numbers = self._method.keep()
        for name, vector in vectors.items():
            if not np.isfinite(vector).all():
                raise BadInput(f"ranks.save: rank {self._transport.rank}: {name} is not finite")
        told = LoopNumbers(self._algorithm, self._transport.size, clock, numbers, user, self._seed)
        return FileContent(vectors, msgspec.to_builtins(told), kept=arrays)

    def _without_common(self, piece: FileContent, what: str) -> FileContent:
        """This rank's part without the arrays that equal rank 0's, which rank 0 writes."""
        if self._transport.size == 1:
            return piece
        with self._transport.working():
            own = {name: _digest(array) for name, array in (*piece.vectors.items(), *piece.kept.items())}
        first = json.loads(self._transport.broadcast(json.dumps(own).encode(), what))
        if self._first:
            return piece
        vectors, kept = (
            {name: array for name, array in arrays.items() if first.get(name) != own[name]}
            for arrays in (piece.vectors, piece.kept)
        )
        return replace(piece, vectors=vectors, kept=kept)

    def _begin(self, draft: Draft, piece: FileContent) -> None:
        if self._first:
            with writing(draft.final):
                draft.final.parent.mkdir(parents=True, exist_ok=True)
            draft.begin(piece.nbytes)

    # ---- in

    def _read(self, folder: Path) -> tuple[Past, list[Apply]]:
        """Read this rank's part; return it with the functions that restore it."""
        rank, ranks = self._transport.rank, self._transport.size
        past = Past(folder, self._algorithm, self._flat.layout, rank, ranks, self._seed)
        draws = past.same or past.rank < past.ranks
        with naming(past.file, *hdf5.ERRORS):
            user = users.taken_up(self._flat, past.numbers.user, past.array, draws)
            return past, [self._method.take_up(past), user]


def _digest(array: Array) -> str:
    return checksum(np.ascontiguousarray(array).view(np.uint8).data) if array.size else ""


def _require_replaceable(path: Path) -> None:
    """Raise BadInput naming what exists at `path`, unless that is only a save."""
    with naming(path):
        if path.exists() and not (path / MANIFEST).is_file():
            raise BadInput(f"{path}: is there already, and no save")
        others = {each.name for each in path.glob("*") if each.suffix != ".h5"} - {MANIFEST}
        if others:
            raise BadInput(f"{path}: holds {min(others)} beside a save, which would be lost")
