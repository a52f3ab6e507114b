"""How ranks make a checkpoint together, and take up their pieces of one again.

- `together`: all ranks have come to the same point, as at the end of a run or between two steps of a synchronous one.
- `Collection` and `give_piece`: ranks that run freely. The master asks; each rank writes its piece between two
  minibatches and waits; when all have, nothing moves any more, and the master writes its own and commits.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mpitrain import checkpoint
from mpitrain.assignments import Work
from mpitrain.flat import Layout
from mpitrain.protocols.wire import Kind, Note
from mpitrain.state import State

if TYPE_CHECKING:
    from mpitrain.protocols.orders import Orders
    from mpitrain.session import Session


@dataclass(frozen=True)
class Saver:
    """Where the checkpoints of a run lie, and of which network they are."""

    folder: Path
    layout: Layout
    keep: int

    def begin(self, state: State, ranks: int = 1) -> checkpoint.Draft:
        """Make room for the pieces of `ranks` ranks. The master's."""
        draft = checkpoint.Draft(self.folder, state.trained)
        draft.begin(sum(vector.nbytes for vector in [*state.vectors().values(), *state.local.values()]) * ranks)
        return draft

    def write_piece(self, rank: int, samples: int, state: State) -> None:
        """A rank's own piece, where it has any; `samples` is the name of the draft."""
        if state.local or state.local_numbers:
            checkpoint.Draft(self.folder, samples).write_local(rank, state, self.layout)

    def save_state(self, state: State, outstanding: list[Work]) -> Path:
        """A checkpoint without pieces, by the master alone."""
        return self.commit(self.begin(state), state, outstanding)

    def save_alone(self, state: State, outstanding: list[Work]) -> Path:
        """A checkpoint by the only rank there is."""
        draft = self.begin(state)
        self.write_piece(0, state.trained, state)
        return self.commit(draft, state, outstanding)

    def commit(self, draft: checkpoint.Draft, state: State, outstanding: list[Work]) -> Path:
        """The master's piece, then the checkpoint's name, which counts what was trained by now."""
        draft.write_state(state, self.layout, outstanding)
        draft.final = self.folder / f"{state.trained:012d}"
        return draft.commit(self.keep)


def share(session: "Session") -> None:
    """Every rank learns from the first where checkpoints lie and which one the run goes on from. Collective."""
    saver, resumed = session.saver, session.resumed
    paths = [str(saver.folder.absolute()) if saver else "", str(resumed.absolute()) if resumed else ""]
    folder, found = session.transport.broadcast("\n".join(paths).encode(), "the run folder").decode().split("\n")
    if folder and saver is None:
        session.saver = Saver(Path(folder), session.network.layout, session.config.run.checkpoints_kept)
    session.resumed = Path(found) if found else None


def together(session: "Session", outstanding: list[Work]) -> Path | None:
    """A checkpoint of all ranks, each with its own piece. Collective over the transport; the path on the first rank."""
    transport, state, saver = session.transport, session.state, session.saver
    if saver is None:
        return None
    first = transport.rank == 0
    draft = saver.begin(state, transport.size) if first else None
    samples = int(transport.broadcast(str(state.trained).encode(), "the checkpoint"))
    saver.write_piece(transport.rank, samples, state)
    transport.barrier("the others' pieces of the checkpoint")
    return saver.commit(draft, state, outstanding) if draft is not None else None


def restore(session: "Session") -> bool:
    """Fill `state.local` from this rank's piece of the checkpoint that the run resumes from.

    Collective over all ranks; those that keep a piece have allocated its vectors. False, and nothing changed, where
    there is no such checkpoint or another set of ranks made it.
    """
    folder, state, transport = session.resumed, session.state, session.transport
    if folder is None:
        return False
    has_some = state.local or state.local_numbers
    mine = f"rank-{transport.rank:05d}.h5" if has_some else ""
    wanted = sorted(filter(None, transport.gather_texts(mine, "the pieces of the checkpoint")))
    if wanted != sorted(path.name for path in folder.glob("rank-*.h5")):
        return False
    if has_some:
        checkpoint.load_local(folder, transport.rank, state, session.network.layout)
    return True


class Collection:
    """The master's side of a checkpoint of free-running ranks: asks on construction; `commit` once `complete`."""

    def __init__(self, session: "Session", workers: list[int], tag: int) -> None:
        assert session.saver is not None
        self.session, self.workers, self._tag = session, workers, tag
        self.outstanding: list[Work] = []
        self._missing = set(workers)
        self._name = session.state.trained
        self._draft = session.saver.begin(session.state, 1 + 4 * len(workers))
        self._post(Note(Kind.SAVE, count=self._name))

    @property
    def complete(self) -> bool:
        """Whether every rank has written its piece and waits."""
        return not self._missing

    def take(self, sender: int, note: Note) -> bool:
        """Whether the note is part of this conversation; then it has been dealt with."""
        if note.kind == Kind.REST:
            self.outstanding.append(note.work)
        elif note.kind == Kind.SAVED:
            self._missing.discard(sender)
        return note.kind in (Kind.REST, Kind.SAVED)

    def commit(self, state: State) -> Path:
        """Write the rest, and let the ranks go on."""
        assert self.session.saver is not None
        self.session.saver.write_piece(self.session.transport.rank, self._name, state)
        path = self.session.saver.commit(self._draft, state, self.outstanding)
        self._post(Note(Kind.RESUME))
        return path

    def _post(self, note: Note) -> None:
        for worker in self.workers:
            self.session.transport.post(worker, self._tag, note.pack())


def give_piece(session: "Session", orders: "Orders", rest: list[Work]) -> None:
    """A rank's answer to SAVE: its piece and the samples it was given and has not used; it waits for the commit.

    What this rank has sent before must be where it belongs.
    """
    assert session.saver is not None and orders.save is not None
    session.saver.write_piece(session.transport.rank, orders.save, session.state)
    for work in rest:
        orders.tell(Note(Kind.REST, epoch=work.epoch, start=work.start, count=work.count, minibatch=work.minibatch))
    orders.tell(Note(Kind.SAVED))
    orders.until(lambda: orders.save is None, "the checkpoint to be whole")
