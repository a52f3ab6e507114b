"""The last checkpoint of a run: complete when the run ends, in the run folder or, if that has no room or is gone, in
another one.

The other folder is a run folder too, where `--resume` goes on. It lies in `run.fallback`, else in the system's folder
for temporary files. Ranks on other nodes may not see that: then their own pieces are missing in the checkpoint, and
workers restart at the centre, as on another number of ranks.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mpitrain.checkpoint import BEST, Draft
from mpitrain.checkpoint.coordination import Copies, copied
from mpitrain.checkpoint.state import State
from mpitrain.checkpoint.writer import Saver
from mpitrain.errors import BadInput, say
from mpitrain.files import make_numbered
from mpitrain.mpi import Transport

WHAT = "the last checkpoint"
UNSEEN = "unseen"  # what a rank says of a folder that is on another node


@dataclass(frozen=True)
class Written:
    """`run`: the run folder that has the checkpoint; `fault`: why it is not the run's own folder, "" if it is;
    `lacking`: the ranks that do not see the folder, whose own vectors the checkpoint lacks."""

    run: Path
    fault: str
    lacking: list[int]


def write(
    saver: Saver | None,
    state: State,
    transport: Transport,
    spare: str = "",
    find: Callable[[], Path | None] | None = None,
    needed: bool = True,
) -> Written | None:
    """Write a checkpoint of all ranks; None without a saver, or if it is not needed. Collective.

    On rank 0, `needed` says whether it is written, `find` where the run folder is now (None: nowhere), and `spare` in
    which folder another one would be. Raises BadInput on all ranks if there is no room anywhere.
    """
    if saver is None or not transport.broadcast(b"needed" if needed else b"", WHAT):
        return None
    copies, own, faults = copied(saver, state, transport), saver.folder.parent, list[str]()
    for place in (lambda: _found(own, find), lambda: fallback(spare, own)):
        fault, lacking = _attempt(saver, state.trained, transport, place, copies)
        if not fault:
            if faults and transport.rank == 0:
                transport.alive_while(lambda: _take_along(own / saver.folder.name / BEST, saver.folder))
            return Written(saver.folder.parent, "; ".join(faults), lacking)
        faults.append(fault)
    saver.move(own)
    raise BadInput.known("; ".join(faults), spoken_here=transport.rank == 0)


def _take_along(best: Path, folder: Path) -> None:
    """Copy the best model so far, if there is one, to the checkpoints of the other run folder: none of the evaluations
    that follow may find a better one. A warning says if it cannot be copied."""
    draft = Draft(folder, BEST)
    try:
        if not best.exists() or draft.final.exists():
            return
        shutil.copytree(best, draft.path)
        draft.path.rename(draft.final)
    except OSError:  # copytree's own has a list of reasons
        draft.abandon()
        say(f"warning: {best}: cannot be copied to {folder}")


def _found(own: Path, find: Callable[[], Path | None] | None) -> Path:
    """Where the run folder is now."""
    found = own if find is None else find()
    if found is None:
        raise BadInput(f"{own}: was deleted meanwhile")
    return found


def fallback(parent: str, run: Path) -> Path:
    """A new folder, named after the run's own. Raises BadInput naming it."""
    return make_numbered(Path(parent or tempfile.gettempdir()) / f"mpitrain-{run.absolute().name}", mode=0o700)


def _attempt(
    saver: Saver, name: int, transport: Transport, place: Callable[[], Path], copies: Copies
) -> tuple[str, list[int]]:
    """Write the checkpoint into the run folder that `place` gives on rank 0. Returns why that failed, or "", and the
    ranks that do not see the folder. Collective."""
    fault, first = "", transport.rank == 0

    def begin() -> None:
        saver.move(place())
        saver.begin(name, copies.nbytes)

    if first and (fault := _fault(begin)):
        for folder in (saver.folder, saver.folder.parent):  # if they were made for it
            with suppress(OSError):
                folder.rmdir()
    told = json.dumps((name, str(saver.folder.parent.absolute()), fault)).encode()
    name, run, fault = json.loads(transport.broadcast(told, WHAT))
    if fault:
        return fault, []
    if not first:
        saver.move(Path(run))
    texts = transport.gather_texts(_write_own(saver, transport.rank, name, copies), WHAT)
    lacking = [rank for rank in copies.sizes if texts[rank] == UNSEEN]
    if first and (fault := next((text for text in texts if text not in ("", UNSEEN)), "")):
        Draft(saver.folder, name).abandon()
    elif first:
        assert copies.whole is not None
        saver.commit(name, copies.whole, [rank for rank in copies.sizes if rank not in lacking])
        if fault := _fault(saver.settle):
            saver.outcomes()  # dropped: the fault is reported here
    return os.fsdecode(transport.broadcast(os.fsencode(fault), WHAT)), lacking


def _write_own(saver: Saver, rank: int, name: int, copies: Copies) -> str:
    """Write this rank's piece; returns why that failed, UNSEEN, or ""."""
    if copies.own is None:
        return ""
    with suppress(OSError):  # what else is wrong, the writing says
        if not Draft(saver.folder, name).path.is_dir():
            return UNSEEN
    saver.write_own(name, rank, copies.own)
    return _fault(saver.settle)


def _fault(action: Callable[[], None]) -> str:
    """Why an action failed, or ""."""
    try:
        action()
    except BadInput as error:
        return str(error)
    return ""
