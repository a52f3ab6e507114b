"""Evaluations that are made after the training: until then copies of the parameters wait on the disk.

A copy is a checkpoint that holds a model alone, `late/000000012800/`. It is deleted once it has been evaluated, so that
a run that is stopped and resumed evaluates each one once.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from mpitrain import checkpoint
from mpitrain.checkpoint import Draft, FileContent
from mpitrain.checkpoint.draft import MODEL
from mpitrain.checkpoint.files import STATE, folders
from mpitrain.checkpoint.reading import numbers, opened, vector
from mpitrain.checkpoint.state import checked
from mpitrain.flat import Array, Layout, fill, on_host

NAME = "late"
AT_ONCE = 2  # copies in memory that wait for the disk


class Moment(msgspec.Struct, frozen=True):
    """The state of the training at the beginning of an evaluation."""

    samples: int = 0
    step: int = 0
    seconds: float = 0.0
    train_loss: float | None = None
    learning_rate: float | None = None


class CopyWriter:
    """Writes copies in a thread, while the training goes on."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._thread = layout, ThreadPoolExecutor(1, "copies")
        self._writing: list[Future[None]] = []

    def keep(self, run: Path, moment: Moment, parameters: Array) -> None:
        """Copy the parameters, and start writing them into the run folder. Waits while the disk is behind. Raises
        BadInput for an earlier copy that could not be written."""
        self.settle(AT_ONCE - 1)
        piece = FileContent({MODEL: np.array(on_host(parameters))}, msgspec.structs.asdict(moment))
        draft = Draft(run / NAME, moment.samples)
        self._writing.append(self._thread.submit(draft.write_alone, piece, self._layout))

    def settle(self, most: int = 0) -> None:
        """Wait until at most this many copies are not on disk. Raises BadInput for one that could not be written."""
        while len(self._writing) > most:
            self._writing.pop(0).result()


def waiting(run: Path) -> list[Path]:
    """The copies that a run folder holds, the oldest first."""
    return folders(run / NAME)


def samples(copy: Path) -> int:
    """After how many samples a copy was made."""
    return int(copy.name.rstrip("~"))


def read(copy: Path, parameters: Array) -> Moment:
    """Fill `parameters` from a copy. Raises BadInput naming it."""
    path, _ = checkpoint.find(copy.parent, copy.name)
    with opened(path / STATE) as file:
        fill(parameters, vector(file, MODEL, parameters)[:])
        return checked(numbers(file), Moment)


def delete(copy: Path) -> None:
    """Delete a copy, and the folder with the last one."""
    checkpoint.delete(copy)
    with suppress(OSError):
        copy.parent.rmdir()


def forget(run: Path, trained: int) -> None:
    """Delete the copies after more than this many samples, from where a training goes on again."""
    for copy in waiting(run):
        if samples(copy) > trained:
            delete(copy)
