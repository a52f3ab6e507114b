"""How ranks write a checkpoint together, and load their pieces of one.

Each rank copies its vectors between two minibatches and continues; threads write the copies, and rank 0's thread gives
the checkpoint its name once all pieces are in the folder. So a checkpoint interrupts a rank only while it copies, and,
where all ranks have to stop at the same moment, until the slowest one has finished its minibatch.

- `save_state`: the master writes alone, where no other rank has a piece.
- `together`: all ranks are at the same point, as between two steps of a synchronous algorithm.
- protocols/server/adding_master.py: ranks that run freely.
- checkpoint/last.py: all ranks, at the end.

During training, a checkpoint that cannot be written causes a warning, and the next one is tried when it is due; the
last one must be written.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mpitrain import checkpoint
from mpitrain.checkpoint.draft import FileContent
from mpitrain.checkpoint.lease import token_of
from mpitrain.checkpoint.state import Numbers, State
from mpitrain.checkpoint.writer import Saver
from mpitrain.errors import BadInput, naming
from mpitrain.flat import Layout
from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import agreed
from mpitrain.sampling.queue import Work

NO_PIECE, NOT_WRITTEN = -1, -1  # the size if a rank has no piece; the name of a checkpoint that is not written


def share(
    saver: Saver | None, resumed: Path | None, transport: Transport, layout: Layout, keep: int, deadline: float
) -> tuple[Saver | None, Path | None, str]:
    """Give all ranks a saver for the folder of rank 0's, and the checkpoint that the run resumes from and the token of
    its lease, which rank 0 knows. Collective."""
    folders = [saver.folder, saver.folder.absolute()] if saver else ["", ""]
    token = token_of(saver.folder.parent) if saver else ""
    words = [*map(str, folders), str(resumed.absolute()) if resumed else "", token]
    told = transport.broadcast(os.fsencode("\0".join(words)), "the run folder")
    given, folder, found, token = os.fsdecode(told).split("\0")
    if folder and saver is None:
        here = Path(given)  # as messages name it, unless this rank began in another folder
        saver = Saver(here if str(here.absolute()) == folder else Path(folder), layout, keep, deadline, transport)
    return saver, Path(found) if found else None, token


@dataclass(frozen=True)
class Copies:
    """What a checkpoint is written from: this rank's own piece (None if it has none), on rank 0 the state `whole`, and
    by rank the bytes of all own pieces."""

    own: FileContent | None
    whole: FileContent | None
    sizes: dict[int, int]

    @property
    def nbytes(self) -> int:
        """Bytes of all vectors, on rank 0."""
        return sum(self.sizes.values()) + (self.whole.nbytes if self.whole else 0)


def copied(saver: Saver, state: State, transport: Transport) -> Copies:
    """Copy this rank's vectors, and on rank 0 the state, as they are now. Collective over the transport."""
    own = saver.copy_own(state)
    whole = saver.copy_state(state, []) if transport.rank == 0 else None
    texts = transport.gather_texts(str(NO_PIECE if own is None else own.nbytes), "the checkpoint")
    return Copies(own, whole, {rank: int(text) for rank, text in enumerate(texts) if int(text) != NO_PIECE})


def save_state(saver: Saver, state: State, outstanding: list[Work]) -> None:
    """Start a checkpoint that holds the master's state alone. The master calls this."""
    copies = Copies(None, saver.copy_state(state, outstanding), {})
    write(saver, begin(saver, state.trained, copies), 0, copies)


def together(saver: Saver, state: State, transport: Transport) -> None:
    """Start a checkpoint of all ranks, each with its own piece. Collective over the transport."""
    copies = copied(saver, state, transport)
    name = begin(saver, state.trained, copies) if transport.rank == 0 else NOT_WRITTEN
    name = int(transport.broadcast(str(name).encode(), "the checkpoint"))
    write(saver, name, transport.rank, copies)


def begin(saver: Saver, samples: int, copies: Copies) -> int:
    """Begin a checkpoint of these copies; returns its name, or NOT_WRITTEN. Rank 0 calls this."""
    try:
        saver.begin(samples, copies.nbytes)
    except BadInput as error:
        saver.refused(samples, str(error))
        return NOT_WRITTEN
    return samples


def write(saver: Saver, name: int, rank: int, copies: Copies) -> None:
    """Start writing this rank's part of a checkpoint, if it was begun."""
    if name == NOT_WRITTEN:
        return
    if copies.own is not None:
        saver.write_own(name, rank, copies.own)
    if copies.whole is not None:
        saver.commit(name, copies.whole, list(copies.sizes))


def restore(
    folder: Path,
    state: State,
    transport: Transport,
    layout: Layout,
    maker: str,
    take: Callable[[Numbers], None] = lambda numbers: None,
) -> bool:
    """Fill `state.local` from this rank's piece of the checkpoint in `folder`.

    `maker` is that of the present algorithm (`algorithms.maker_of`). `take` restores from the piece's numbers, which
    may be anything, and raises ValueError if they do not fit. Collective over all ranks; those with a piece have
    allocated its vectors. Returns False and changes nothing if another set of ranks or another algorithm wrote it.
    Raises BadInput naming a file.
    """
    has_some = state.local or state.local_numbers
    mine = checkpoint.file_of(transport.rank) if has_some else ""
    wanted = sorted(filter(None, transport.gather_texts(mine, "the pieces of the checkpoint")))
    if wanted != from_first(transport, lambda: _pieces(folder, maker), "the pieces of the checkpoint"):
        return False

    def load() -> None:
        if has_some:
            transport.alive_while(lambda: checkpoint.load_local(folder, transport.rank, state, layout))
            with naming(folder / mine, ValueError):
                take(state.local_numbers)

    agreed(transport, load, "the pieces of the checkpoint")
    return True


def _pieces(folder: Path, maker: str) -> list[str]:
    """The names of the ranks' own pieces; none if another algorithm or optimizer wrote them."""
    return checkpoint.pieces(folder) if checkpoint.maker(folder) in ("", maker) else []


def from_first(transport: Transport, read: Callable[[], list[str]], what: str) -> list[str]:
    """Broadcast the names that rank 0 reads: if many ranks listed the folder, they would load the file system and might
    see different contents."""
    names = transport.alive_while(read) if transport.rank == 0 else []
    return list(filter(None, transport.broadcast("\n".join(names).encode(), what).decode().split("\n")))
