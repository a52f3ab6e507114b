"""One rank's side of writing checkpoints: it copies its vectors at once, and a thread writes them during training."""

import copy
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import numpy as np

from mpitrain.checkpoint import BEST, Draft, FileContent, best_error, clear, file_of
from mpitrain.checkpoint.draft import MODEL
from mpitrain.checkpoint.files import STATE
from mpitrain.checkpoint.state import State
from mpitrain.errors import BadInput
from mpitrain.files import read_text, write_below
from mpitrain.flat import Array, Layout, on_host
from mpitrain.mpi import Transport
from mpitrain.sampling.queue import Work


@dataclass(eq=False)
class Saver:
    """Writes the checkpoints of a run into `folder`, in a thread.

    `keep` checkpoints are kept; other ranks' pieces are awaited for `deadline` seconds. Every checkpoint holds the
    run's `documents` (file names and texts); the first one also updates those in the run folder. One checkpoint is
    written at a time: while `busy`, no other may be begun. While this rank waits for its disk, it sends heartbeats
    through `transport`. `kept` gives the arrays that the model keeps beside its parameters.
    """

    folder: Path
    layout: Layout
    keep: int
    deadline: float
    transport: Transport
    documents: Mapping[str, str] = field(default_factory=dict)
    kept: Callable[[Array], dict[str, Array]] = lambda parameters: {}

    def __post_init__(self) -> None:
        self._to_publish = True
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._jobs: list[Future[None]] = []  # for the checkpoint that was begun last; the last job completes it
        self._awaited: dict[int, Path] = {}  # the pieces that complete the checkpoint, by rank, until all are there
        self._cleared, self._clearing = False, Lock()
        self.begun = 0  # how many checkpoints were begun
        self._ended: list[tuple[Path, str]] = []
        self._copies: dict[str, Array] = {}
        self._best: FileContent | None = None  # the best model, until it is written
        self._best_lock = Lock()
        self._writing_best: Future[None] | None = None
        self._best_error: float | None = None

    # ---- copies

    def copy_own(self, state: State) -> FileContent | None:
        """Copy this rank's own vectors, which only a run on the same ranks can resume from; None if it has none."""
        if not (state.local or state.local_numbers):
            return None
        return FileContent(self._copied("own", state.local), copy.deepcopy(state.local_numbers))

    def copy_state(self, state: State, outstanding: list[Work]) -> FileContent:
        """Copy the state, from which a run resumes on any number of ranks. The master calls this."""
        ranges = [*state.queue.returned, *outstanding]
        kept = self.kept(on_host(state.model))
        return FileContent(self._copied("state", state.vectors()), state.numbers(), ranges, kept)

    def offer_best(self, error: float, model: Array, trained: int, merit: str = "error", of: str = "") -> None:
        """If the error, or another figure of `merit`, is the smallest so far on the data `of`, start writing a copy of
        the model."""
        if self._best_error is None:
            self._best_error = self.transport.alive_while(lambda: best_error(self.folder, merit, of))
        if error < self._best_error:
            self._best_error = error
            vector = np.array(on_host(model))
            numbers = {"error": error, "trained": trained, "merit": merit, "of": of}
            piece = FileContent({MODEL: vector}, numbers, kept=self.kept(vector))
            with self._best_lock:
                self._best = piece
            self._writing_best = self._thread.submit(self._write_best)
            self._joined()

    def _copied(self, owner: str, vectors: dict[str, Array]) -> dict[str, Array]:
        """Copies in buffers that are reused, after the previous checkpoint has been written from them."""
        self.transport.at_work(self._jobs, self._lacking)
        self._jobs.clear()
        out = {}
        for name, vector in vectors.items():
            host = on_host(vector)
            out[name] = self._copies.setdefault(f"{owner}/{name}", np.empty_like(host))
            np.copyto(out[name], host)
        return out

    # ---- writing

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return bool(self._lacking()) or not self._joined()

    def begin(self, samples: int, nbytes: int) -> None:
        """Create the folder, if there is room for `nbytes` of vectors. Rank 0 calls this. Raises BadInput."""

        def make() -> None:
            self._clear()
            Draft(self.folder, samples).begin(nbytes)

        self.transport.alive_while(make)
        self.begun += 1

    def refused(self, samples: int, reason: str) -> None:
        """Have `outcomes` report a checkpoint that was not begun."""
        self._ended.append((Draft(self.folder, samples).final, reason))

    def write_own(self, samples: int, rank: int, piece: FileContent) -> None:
        """Start writing this rank's piece."""
        self._start(Draft(self.folder, samples).write, file_of(rank), piece, self.layout)

    def commit(self, samples: int, state: FileContent, ranks: list[int]) -> None:
        """Start writing the state; the checkpoint gets its name once the pieces of `ranks` have been written, too."""
        draft = Draft(self.folder, samples)
        written = self._start(draft.write, STATE, state, self.layout)
        self._awaited = {rank: draft.path / file_of(rank) for rank in ranks}
        self._jobs.append(self._thread.submit(self._complete, draft, written))

    def _start(self, write: Callable[..., None], *arguments: object) -> "Future[None]":
        """Start writing a file of this rank's own."""
        self._jobs.append(job := self._thread.submit(write, *arguments))
        self._joined()
        return job

    def _complete(self, draft: Draft, written: "Future[None]") -> None:
        try:
            written.result()
            draft.await_files([path.name for path in self._awaited.values()], self.deadline)
            self._awaited = {}
            draft.commit(self.keep, self.documents)
            self._ended.append((draft.final, ""))
        except Exception as error:
            self._awaited = {}
            draft.abandon()
            self._ended.append((draft.final, str(error)))
            raise
        self._publish()
        self._write_best()

    def _publish(self) -> None:
        """Update the documents in the run folder from the checkpoint, once; if that fails, the next checkpoint does."""
        for name, text in self.documents.items() if self._to_publish else ():
            path = self.folder.parent / name
            try:
                if not path.exists() or read_text(path) != text:
                    write_below(self.folder.parent, name, text)
            except (BadInput, OSError, ValueError) as error:
                self._ended.append((path, str(error)))
                return
        self._to_publish = False

    def move(self, run: Path) -> None:
        """Write into this run folder from now on. Call it once everything that was begun has been written."""
        self._jobs.clear()
        self.folder, self._to_publish = run / "checkpoints", True

    def _clear(self) -> None:
        """Once, delete what a killed run has left."""
        with self._clearing:
            if not self._cleared:
                clear(self.folder)
            self._cleared = True

    def _write_best(self) -> None:
        """Write the best model if there is a new one. If that fails, the next checkpoint tries again."""
        piece, draft = self._best, Draft(self.folder, BEST)
        if piece is None:
            return
        self._clear()
        try:
            draft.write_alone(piece, self.layout, self.documents)
        except Exception as error:
            self._ended.append((draft.final, str(error)))
            return
        with self._best_lock:
            if self._best is piece:  # otherwise training has found a better one in the meantime
                self._best = None

    # ---- how it went

    def outcomes(self) -> list[tuple[Path, str]]:
        """The checkpoints that were completed or failed since the last call, and other files that could not be written;
        each with the reason if it failed, else "". The list is empty while one is being written."""
        if self.busy:
            return []
        ended, self._ended = self._ended, []
        return ended

    def settle(self) -> None:
        """Wait until everything is written. Raises BadInput for a checkpoint that could not be written."""
        self.transport.at_work(self._all(), self._lacking)
        for job in self._jobs:
            job.result()

    def _joined(self) -> bool:
        """Whether all is written. Simulated ranks wait for it: threads take no simulated time."""
        return self.transport.runtime.join(self._all(), 0.0, alone=not self._lacking())

    def _all(self) -> "list[Future[None]]":
        return self._jobs + ([] if self._writing_best is None else [self._writing_best])

    def _lacking(self) -> list[int]:
        """The ranks whose pieces the thread is waiting for, once it has written its own."""
        if not all(job.done() for job in self._jobs[:-1]):
            return []
        lacking = [rank for rank, path in self._awaited.items() if not os.path.exists(path)]
        return lacking if self._awaited else []  # a checkpoint that is complete has its pieces under another name
