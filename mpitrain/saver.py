"""One rank's side of writing checkpoints: copies are taken at once, a thread writes them while the training goes on."""

import copy
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np

from mpitrain.assignments import Work
from mpitrain.checkpoint import BEST, Draft, Piece, best_error, clear, file_of
from mpitrain.checkpoint.draft import MODEL, STATE
from mpitrain.config import Run
from mpitrain.errors import BadInput
from mpitrain.flat import Array, Layout, on_host
from mpitrain.state import State


class Saver:
    """Where the checkpoints of a run lie, of which network they are, and the thread that writes them.

    `keep` is how many of the newest stay; `deadline` the seconds that other ranks' pieces are waited for. One
    checkpoint at a time: while `busy`, another is not to be begun.
    """

    def __init__(self, folder: Path, layout: Layout, keep: int, deadline: float = 300.0) -> None:
        self.folder, self.layout, self.keep, self.deadline = folder, layout, keep, deadline
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._jobs: list[Future[None]] = []  # of the checkpoint that was begun last
        self._ended: list[tuple[Path, str]] = []
        self._copies: dict[str, Array] = {}
        self._best: Piece | None = None
        self._best_error: float | None = None

    @classmethod
    def of(cls, run: Run, folder: Path, layout: Layout) -> "Saver":
        """As the configuration says."""
        return cls(folder, layout, run.checkpoints_kept, run.deadline)

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
            self._best_error = best_error(self.folder)
        if error < self._best_error:
            self._best_error = error
            self._best = Piece({MODEL: np.array(on_host(model))}, {"error": error, "trained": trained})

    def _copied(self, owner: str, vectors: dict[str, Array]) -> dict[str, Array]:
        """Copies in memory that is kept for the next time, once nothing of the last time is read from it any more."""
        wait(self._jobs)
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
        clear(self.folder)
        best = self._best.nbytes if self._best is not None else 0
        Draft(self.folder, samples).begin(nbytes + best)

    def refused(self, samples: int, reason: str) -> None:
        """Have `outcomes` tell of a checkpoint that was not begun."""
        self._ended.append((Draft(self.folder, samples).final, reason))

    def write_own(self, samples: int, rank: int, piece: Piece) -> None:
        """Start writing this rank's piece."""
        self._jobs.append(self._thread.submit(self._write_own, Draft(self.folder, samples), file_of(rank), piece))

    def commit(self, samples: int, state: Piece, ranks: list[int]) -> None:
        """Start writing the state, and give the checkpoint its name once the pieces of `ranks` are there, too."""
        draft, best, self._best = Draft(self.folder, samples), self._best, None
        self._jobs.append(self._thread.submit(self._commit, draft, state, [file_of(rank) for rank in ranks], best))

    def _write_own(self, draft: Draft, name: str, piece: Piece) -> None:
        try:
            draft.write(name, piece, self.layout)
        except BadInput as error:
            draft.refuse(name, str(error))
            raise

    def _commit(self, draft: Draft, state: Piece, names: list[str], best: Piece | None) -> None:
        try:
            draft.write(STATE, state, self.layout)
            if best is not None:
                self._write_best(best)
            draft.await_files(names, self.deadline)
            draft.commit(self.keep)
            self._ended.append((draft.final, ""))
        except Exception as error:
            draft.abandon()
            self._ended.append((draft.final, str(error)))
            raise

    def _write_best(self, piece: Piece) -> None:
        draft = Draft(self.folder, BEST)
        try:
            draft.begin(piece.nbytes)
            draft.write(STATE, piece, self.layout)
            draft.commit()
        except BadInput:
            draft.abandon()
            raise

    # ---- how it went

    def outcomes(self) -> list[tuple[Path, str]]:
        """The checkpoints that came to an end since the last call, and of those that failed, why."""
        ended, self._ended = self._ended, []
        return ended

    def settle(self) -> None:
        """Wait until all is written. Raises BadInput for what was not."""
        for job in self._jobs:
            job.result()
