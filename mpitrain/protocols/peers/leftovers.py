"""What a resumed run finds: integer weights, and residuals, which are gradient that is not yet in the weights."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from mpitrain import checkpoint
from mpitrain.checkpoint import coordination
from mpitrain.checkpoint.reading import numbers, opened, vector
from mpitrain.checkpoint.state import Numbers, checked
from mpitrain.compression.replica import digest
from mpitrain.compression.thresholds import round_weights, share_residuals
from mpitrain.errors import naming
from mpitrain.files import hdf5
from mpitrain.flat import Array
from mpitrain.mpi.agreement import agreed
from mpitrain.training.context import Session


class PeerPast(msgspec.Struct, frozen=True):
    """A peer's numbers in a checkpoint."""

    threshold: Annotated[float, msgspec.Meta(ge=2.0**-100, le=2.0**100)]


def take_up(session: Session) -> None:
    """Round weights of another algorithm to whole units; restore residuals, shared out anew among other ranks.

    Collective. Raises BadInput naming a file that cannot be read, or a weight that is out of range.
    """
    state = session.state
    if session.resumed is None:
        return
    if digest(state.beside["counts"], state.theta)[1] >= 0:
        round_weights(state.theta, state.beside["counts"])
    folder, transport = session.resumed, session.transport
    names = coordination.from_first(transport, lambda: _with_residual(folder), "the pieces of the checkpoint")
    if names and not session.restore(_require):
        pieces = [] if session.follows else [folder / name for name in names]
        share_out = partial(transport.alive_while, lambda: _share_out(session, pieces))
        agreed(transport, share_out, "the pieces of the checkpoint")


def _share_out(session: Session, pieces: list[Path]) -> None:
    if not pieces:
        return
    state, number = session.state, session.members.index(session.transport.rank)
    residual, chosen = state.local["residual"], pieces[number % len(pieces)]
    with opened(chosen) as file:
        past = numbers(file)
        _require(past)
    state.local_numbers.update(past)
    with ExitStack() as stack, naming(chosen.parent, *hdf5.ERRORS):
        residuals = [_residual(stack, path, residual) for path in pieces]
        share_residuals(residuals, len(session.members), number, residual)


def _residual(stack: ExitStack, path: Path, like: Array) -> Array:
    with naming(path, *hdf5.ERRORS):
        return vector(stack.enter_context(hdf5.opened(path)), "residual", like)


def _require(past: Numbers) -> None:
    checked(past, PeerPast)


def _with_residual(folder: Path) -> list[str]:
    found = []
    for name in checkpoint.pieces(folder):
        with opened(folder / name) as file:
            if hdf5.has(file, "residual"):
                found.append(name)
    return found
