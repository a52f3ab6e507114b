"""How ranks make a checkpoint together, and take up their pieces of one again.

Each rank copies what it has to save, between two minibatches, and goes on; threads write the copies, and the first
rank's gives the checkpoint its name once all pieces lie in the folder. So a checkpoint stops nobody for longer than
copies take, and where ranks have to stop at one moment, than the slowest one's minibatch.

- `save_state`: the master alone, where no other rank keeps anything.
- `together`: all ranks have come to the same point, as at the end of a run or between two steps of a synchronous one.
- protocols/collection.py: ranks that run freely.

While the training lasts, a checkpoint that cannot be written is a warning, and the next one is tried when it is due;
the last one must be written.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mpitrain import checkpoint
from mpitrain.algorithms import name_of
from mpitrain.checkpoint.writer import Saver
from mpitrain.errors import BadInput
from mpitrain.flat import fill
from mpitrain.sampling.assignments import Work

if TYPE_CHECKING:
    from mpitrain.mpi import Transport
    from mpitrain.training.context import Session

NONE, REFUSED = -1, -1  # bytes of a rank that keeps nothing; the name of a checkpoint that is not made


def share(session: "Session") -> None:
    """Every rank learns from the first where checkpoints lie and which one the run goes on from. Collective."""
    saver, resumed = session.saver, session.resumed
    paths = [str(saver.folder.absolute()) if saver else "", str(resumed.absolute()) if resumed else ""]
    folder, found = session.transport.broadcast("\n".join(paths).encode(), "the run folder").decode().split("\n")
    if folder and saver is None:
        session.saver = Saver.of(session.config.run, Path(folder), session.network.layout, session.transport)
    session.resumed = Path(found) if found else None


def save_state(session: "Session", outstanding: list[Work]) -> None:
    """Start a checkpoint without pieces, by the master alone."""
    saver, state = session.saver, session.state
    assert saver is not None
    piece = saver.copy_state(state, outstanding)
    if begun(saver, state.trained, piece.nbytes, last=False):
        saver.commit(state.trained, piece, [])


def together(session: "Session", outstanding: list[Work], last: bool = False, needed: bool = True) -> None:
    """Start a checkpoint of all ranks, each with its own piece. Collective over the transport.

    The `last` one is there when this returns; if it cannot be, BadInput is raised. None is made unless the first rank
    says that it is `needed`.
    """
    transport, state, saver = session.transport, session.state, session.saver
    if saver is None:
        return
    first = transport.rank == 0
    own, whole = saver.copy_own(state), saver.copy_state(state, outstanding) if first else None
    texts = transport.gather_texts(str(NONE if own is None else own.nbytes), "the checkpoint")
    sizes = {rank: int(text) for rank, text in enumerate(texts) if int(text) != NONE}
    name = state.trained
    nbytes = sum(sizes.values()) + (whole.nbytes if whole else 0)
    if first and not (needed and begun(saver, name, nbytes, last)):
        name = REFUSED
    name = int(transport.broadcast(str(name).encode(), "the checkpoint"))
    if name == REFUSED:
        return
    if own is not None:
        saver.write_own(name, transport.rank, own)
    if last:
        saver.settle()
        transport.barrier("the others' pieces of the checkpoint")
    if whole is not None:
        saver.commit(name, whole, list(sizes))
    if last:
        saver.settle()


def begun(saver: Saver, samples: int, nbytes: int, last: bool) -> bool:
    """Whether the checkpoint's folder is there. That of the `last` must be: raises BadInput."""
    try:
        saver.begin(samples, nbytes)
    except BadInput as error:
        if last:
            raise
        saver.refused(samples, str(error))
        return False
    return True


def restore(session: "Session") -> bool:
    """Fill `state.local` from this rank's piece of the checkpoint that the run resumes from.

    Collective over all ranks; those that keep a piece have allocated its vectors. False, and nothing changed, where
    there is no such checkpoint, or another set of ranks or another algorithm made it.
    """
    folder, state, transport = session.resumed, session.state, session.transport
    if folder is None:
        return False
    has_some = state.local or state.local_numbers
    mine = checkpoint.file_of(transport.rank) if has_some else ""
    wanted = sorted(filter(None, transport.gather_texts(mine, "the pieces of the checkpoint")))
    if wanted != from_first(transport, lambda: _pieces(session, folder), "the pieces of the checkpoint"):
        return False
    if has_some:
        _load_local(session, folder)
    return True


def _pieces(session: "Session", folder: Path) -> list[str]:
    """The ranks' own pieces, which mean nothing to another algorithm."""
    made = checkpoint.maker(folder)
    return checkpoint.pieces(folder) if made in ("", name_of(session.config.algorithm)) else []


def _load_local(session: "Session", folder: Path) -> None:
    """Fill `state.local` while the others hear that this rank is alive. A thread reads into host memory: which GPU is
    this rank's is known to the main thread alone."""
    state, rank, layout = session.state, session.transport.rank, session.network.layout
    places = state.local
    state.local = {
        name: vector if isinstance(vector, np.ndarray) else np.empty(vector.shape, vector.dtype)
        for name, vector in places.items()
    }
    session.transport.alive_while(lambda: checkpoint.load_local(folder, rank, state, layout))
    for name, vector in state.local.items():
        if vector is not places[name]:
            fill(places[name], vector)
    state.local = places


def from_first(transport: "Transport", read: Callable[[], list[str]], what: str) -> list[str]:
    """The names that the first rank reads: many ranks that list one folder burden it, and may not see it alike."""
    names = transport.alive_while(read) if transport.rank == 0 else []
    return list(filter(None, transport.broadcast("\n".join(names).encode(), what).decode().split("\n")))
