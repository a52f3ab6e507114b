"""The server's arithmetic: which gradients it takes, and what it does with them. Pure of messages."""

import numpy as np

from mpitrain.algorithms import Asgd
from mpitrain.errors import TrainingFailed
from mpitrain.flat import Array, block_of, blocks, scratch_for
from mpitrain.protocols.server_rules import rule_of
from mpitrain.protocols.wire import Note
from mpitrain.rules.server import decay
from mpitrain.session import Session


class Updates:
    """The server's arithmetic: checks a gradient and applies it. Pure of messages."""

    def __init__(self, session: Session) -> None:
        self.state, self.monitor = session.state, session.monitor
        self.options: Asgd = session.config.algorithm  # type: ignore[assignment]
        self.rule = rule_of(self.options, session.device)
        self.limit = session.config.run.nonfinite_limit
        self._refused_in_a_row = 0
        self._previous = np.empty_like(self.state.theta) if session.config.run.gradient_statistics else None
        self._previous_from = -1
        self._scratch = scratch_for(self.state.theta)

    def accepts(self, gradient: Array, note: Note, worker: int) -> bool:
        """Whether the gradient is finite. Counts and names a worker whose gradient is not; raises TrainingFailed
        when that persists."""
        with np.errstate(over="ignore", invalid="ignore"):
            square = float(np.dot(gradient, gradient))  # one pass at memory speed; overflow alone is no verdict
        if np.isfinite(square) or np.isfinite(gradient).all():
            self._refused_in_a_row = 0
            return True
        self._refused_in_a_row += 1
        self.monitor.refused(worker, note.index, note.loss)
        if self._refused_in_a_row >= self.limit:
            raise TrainingFailed(
                f"{self.limit} gradients in a row were not finite, the last from rank {worker} at update "
                f"{self.state.index}; a smaller training.learning_rate may help (run.nonfinite_limit)"
            )
        return False

    def apply(self, gradient: Array, note: Note, worker: int) -> None:
        """The algorithm's update with the worker's index j; counts i, the samples and the staleness."""
        state = self.state
        alpha = decay(state.index, note.index, self.options.gradient_decay)
        for b in blocks(state.theta.size, block_of(state.theta)):
            self.rule(state, b, gradient[b], note.learning_rate, alpha, self._scratch[: b.stop - b.start])
        self.monitor.updated(state.index - note.index)
        if self._previous is not None:
            self._compare(gradient, note, worker)
        state.index += 1

    def _compare(self, gradient: Array, note: Note, worker: int) -> None:
        """Chan & Lane §3.4: share of exact zeros in a minibatch's gradient, cosine between what two workers sent."""
        previous, cosine = self._previous, None
        assert previous is not None
        if self._previous_from not in (-1, worker):
            norms = np.linalg.norm(gradient) * np.linalg.norm(previous)
            cosine = float(np.dot(gradient, previous) / norms) if norms else None
        np.copyto(previous, gradient)
        self._previous_from = worker
        self.monitor.gradient_statistics(note.zeros, note.minibatches, cosine)
