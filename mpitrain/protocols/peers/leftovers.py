"""What a resumed run finds: integer weights, and residuals, which are gradient that is not yet in the weights."""

import json
from contextlib import ExitStack
from pathlib import Path

import h5py

from mpitrain import checkpoint
from mpitrain.checkpoint import coordination
from mpitrain.errors import BadInput
from mpitrain.ops import digest
from mpitrain.rules.sparse_delta import round_weights, share_residuals
from mpitrain.training.context import Session


def take_up(session: Session) -> None:
    """Weights of another algorithm become whole units; residuals go on, shared out anew among another number of ranks.

    Collective. Raises BadInput naming a file that cannot be read, or a weight that is out of range.
    """
    state = session.state
    if session.resumed is None:
        return
    if digest.of_replica(state.beside["counts"], state.theta)[1] >= 0:
        round_weights(state.theta, state.beside["counts"])
    folder, transport = session.resumed, session.transport
    names = coordination.from_first(transport, lambda: _with_residual(folder), "the pieces of the checkpoint")
    if names and not coordination.restore(session) and not session.follows:
        transport.alive_while(lambda: _share_out(session, [folder / name for name in names]))


def _share_out(session: Session, pieces: list[Path]) -> None:
    state, number = session.state, session.members.index(session.transport.rank)
    with ExitStack() as stack:
        files = [stack.enter_context(h5py.File(path, "r")) for path in pieces]
        residuals = [file["residual"] for file in files]
        share_residuals(residuals, len(session.members), number, state.local["residual"])
        state.local_numbers.update(json.loads(files[number % len(files)].attrs["numbers"]))


def _with_residual(folder: Path) -> list[str]:
    return [name for name in checkpoint.pieces(folder) if _holds_residual(folder / name)]


def _holds_residual(path: Path) -> bool:
    try:
        with h5py.File(path, "r") as file:
            return "residual" in file
    except OSError as error:
        raise BadInput(f"{path}: {error}") from error
