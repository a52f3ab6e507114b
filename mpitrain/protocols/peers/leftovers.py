"""Residuals of a run that is resumed: gradient that was computed and is not yet in the weights."""

from contextlib import ExitStack
from typing import Any

import h5py

from mpitrain import saving
from mpitrain.errors import BadInput
from mpitrain.rules.sparse_delta import share_residuals
from mpitrain.session import Session


def take_up_residuals(session: Session) -> None:
    """Each rank its own residual again, or its part of the sum when there were other ranks. Collective.

    Raises BadInput naming a file that cannot be read.
    """
    if saving.restore(session) or session.resumed is None:
        return
    residual, number = session.state.local["residual"], session.members.index(session.transport.rank)
    with ExitStack() as files:
        pieces: list[Any] = []
        for path in sorted(session.resumed.glob("rank-*.h5")):
            try:
                pieces.append(files.enter_context(h5py.File(path, "r"))["residual"])
            except (OSError, KeyError) as error:
                raise BadInput(f"{path}: {error}") from error
        if pieces:
            share_residuals(pieces, len(session.members), number, residual)
