"""One rank's side of writing checkpoints: copies are taken at once, a thread writes them while the training goes on."""

import copy
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from mpitrain.checkpoint import BEST, Draft, Piece, best_error, clear, file_of
from mpitrain.checkpoint.draft import MODEL, STATE
from mpitrain.checkpoint.state import State
from mpitrain.config import Run
from mpitrain.errors import BadInput
from mpitrain.files import write_whole
from mpitrain.flat import Array, Layout, on_host
from mpitrain.sampling.assignments import Work

if TYPE_CHECKING:
    from mpitrain.mpi import Transport


class Saver:
    """Where the checkpoints of a run lie, of which network they are, and the thread that writes them.

    `keep` is how many of the newest stay; `deadline` the seconds that other ranks' pieces are waited for. Every
    checkpoint holds the run's `documents` (file names, texts); the first one brings those beside the folder up to date.
    One checkpoint at a time: while `busy`, another is not to be begun. Whoever waits for this rank in `transport` while
    it waits for its disk gets heartbeats.
    """

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        keep: int,
        deadline: float = 300.0,
        transport: "Transport | None" = None,
        documents: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.folder, self.layout, self.keep, self.deadline = folder, layout, keep, deadline
        self._transport, self._documents, self._to_publish = transport, documents, True
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._jobs: list[Future[None]] = []  # of the checkpoint that was begun last
        self._awaited: list[int] = []  # the ranks whose pieces the thread waits for at the moment
        self._ended: list[tuple[Path, str]] = []
        self._copies: dict[str, Array] = {}
        self._best: Piece | None = None  # until it is written
        self._best_lock = Lock()
        self._best_error: float | None = None

    @classmethod
    def of(
        cls,
        run: Run,
        folder: Path,
        layout: Layout,
        transport: "Transport",
        documents: Mapping[str, str] = MappingProxyType({}),
    ) -> "Saver":
        """As the configuration says."""
        return cls(folder, layout, run.checkpoints_kept, run.deadline, transport, documents)

    # ---- copies

    def copy_own(self, state: State) -> Piece | None:
        """What only a run with the same ranks takes up again; None where this rank has nothing of the kind."""
        if not (state.local or state.local_numbers):
            return None
        return Piece(self._copied("own", state.local), copy.deepcopy(state.local_numbers))

    def copy_state(self, state: State, outstanding: list[Work]) -> Piece:
        """What a run resumes from with any number of ranks. The master's."""
        ranges = [*state.assignments.returned, *outstanding]
        return Piece(self._copied("state", state.vectors()), state.numbers(), ranges)

    def offer_best(self, error: float, model: Array, trained: int) -> None:
        """Keep a copy of the model if its error is the smallest so far, for the next checkpoint to write."""
        if self._best_error is None:
            self._best_error = self._alive_while(lambda: best_error(self.folder))
        if error < self._best_error:
            self._best_error = error
            piece = Piece({MODEL: np.array(on_host(model))}, {"error": error, "trained": trained})
            with self._best_lock:
                self._best = piece

    def _copied(self, owner: str, vectors: dict[str, Array]) -> dict[str, Array]:
        """Copies in memory that is kept for the next time, once nothing of the last time is read from it any more."""
        self._await(self._jobs)
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
        return not all(job.done() for job in self._jobs)

    def begin(self, samples: int, nbytes: int) -> None:
        """Make the folder, with room for `nbytes` of vectors. The first rank's. Raises BadInput."""

        def make() -> None:
            clear(self.folder)
            Draft(self.folder, samples).begin(nbytes)

        self._alive_while(make)

    def refused(self, samples: int, reason: str) -> None:
        """Have `outcomes` tell of a checkpoint that was not begun."""
        self._ended.append((Draft(self.folder, samples).final, reason))

    def write_own(self, samples: int, rank: int, piece: Piece) -> None:
        """Start writing this rank's piece."""
        self._jobs.append(self._thread.submit(self._write_own, Draft(self.folder, samples), file_of(rank), piece))

    def commit(self, samples: int, state: Piece, ranks: list[int]) -> None:
        """Start writing the state, and give the checkpoint its name once the pieces of `ranks` are there, too."""
        self._jobs.append(self._thread.submit(self._commit, Draft(self.folder, samples), state, ranks))

    def _write_own(self, draft: Draft, name: str, piece: Piece) -> None:
        try:
            draft.write(name, piece, self.layout)
        except BadInput as error:
            draft.refuse(name, str(error))
            raise

    def _commit(self, draft: Draft, state: Piece, ranks: list[int]) -> None:
        try:
            draft.write(STATE, state, self.layout)
            self._await_pieces(draft, ranks)
            draft.commit(self.keep, self._documents)
            self._ended.append((draft.final, ""))
        except Exception as error:
            draft.abandon()
            self._ended.append((draft.final, str(error)))
            raise
        self._publish()
        self._write_best()

    def _await_pieces(self, draft: Draft, ranks: list[int]) -> None:
        self._awaited = ranks
        try:
            draft.await_files([file_of(rank) for rank in ranks], self.deadline)
        finally:
            self._awaited = []

    def _publish(self) -> None:
        """Have the documents beside the folder say what the checkpoint says, once; the next checkpoint tries again."""
        for name, text in self._documents.items() if self._to_publish else ():
            path = self.folder.parent / name
            try:
                if not path.exists() or path.read_text(encoding="utf-8") != text:
                    write_whole(path, text)
            except (BadInput, OSError, ValueError) as error:
                self._ended.append((path, str(error)))
                return
        self._to_publish = False

    def _write_best(self) -> None:
        """Write the best model, if there is a new one. If that fails, it is kept for the next checkpoint."""
        piece, draft = self._best, Draft(self.folder, BEST)
        if piece is None:
            return
        try:
            draft.begin(piece.nbytes)
            draft.write(STATE, piece, self.layout)
            draft.commit(documents=self._documents)
        except Exception as error:
            draft.abandon()
            self._ended.append((draft.final, str(error)))
            return
        with self._best_lock:
            if self._best is piece:  # else the training has meanwhile found a better one
                self._best = None

    # ---- how it went

    def outcomes(self) -> list[tuple[Path, str]]:
        """The checkpoints that came to an end since the last call, and other files that could not be written beside
        them; of those that failed, why."""
        ended, self._ended = self._ended, []
        return ended

    def settle(self) -> None:
        """Wait until all is written. Raises BadInput for what was not."""
        self._await(self._jobs)
        for job in self._jobs:
            job.result()

    def _await(self, jobs: Sequence["Future[None]"]) -> None:
        if self._transport is None:
            wait(jobs)
        else:
            self._transport.at_work(jobs, lambda: self._awaited)

    def _alive_while(self, action: Callable[[], Any]) -> Any:
        return action() if self._transport is None else self._transport.alive_while(action)
