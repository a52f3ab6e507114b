"""Load the checkpoint from which a run resumes, and check that the run's configuration fits it."""

from pathlib import Path

import msgspec
import numpy as np

from mpitrain import checkpoint
from mpitrain import config as configuration
from mpitrain.algorithms import Algorithm, maker_of
from mpitrain.config import Config
from mpitrain.errors import BadInput
from mpitrain.sampling.queue import Queue
from mpitrain.training.context import Session, fresh


def load(session: Session, resumed: Path) -> None:
    """Load a checkpoint into the session's state. Raises BadInput naming the file, and the keys changed since then."""
    try:
        checkpoint.load_state(resumed, session.state, session.network.layout)
    except BadInput as error:
        raise BadInput(f"{error}{_changes(session.config, resumed)}") from error
    if (resumed / checkpoint.CONFIG).exists():
        before = configuration.load(resumed / checkpoint.CONFIG, [])
        _require_order(session, before)
        then, now = before.algorithm, session.config.algorithm
        if (maker_of(then), then.units) != (maker_of(now), now.units):
            _begin_anew(session, then, resumed)


def _require_order(session: Session, before: Config) -> None:
    """Raise BadInput naming a changed key that would change the order of the samples within an epoch: some samples
    would be trained on twice and others not at all."""
    queue, now = session.state.queue, session.config
    within = bool(queue.returned or queue.position % queue.samples)
    if not within or before.algorithm.independent or now.algorithm.independent:
        return
    changed = {
        "training.seed": (before.training.seed, now.training.seed),
        "algorithm.sampling": (bool(before.algorithm.chunked), bool(now.algorithm.chunked)),
        "algorithm.loaders, algorithm.chunk": (before.algorithm.chunked, now.algorithm.chunked),
    }
    for key, (then, wanted) in changed.items():
        if then != wanted:
            at = f"{session.state.trained / queue.samples:.2f}"
            why = f"samples cannot get another order within an epoch, and the newest checkpoint is in one ({at})"
            raise BadInput(f"{key}: {why}")


def _begin_anew(session: Session, then: Algorithm, resumed: Path) -> None:
    """Go on from the model of the earlier algorithm `then`, without its other vectors: vectors of the same name may
    have other units now."""
    state = session.state
    if then.model_from != ("theta",):  # θ is ahead of the model, or the model is a mean
        past = fresh(then, state.theta.copy(), Queue(state.queue.samples, 0))
        np.copyto(state.theta, checkpoint.load_model(resumed, past, then.model_from, session.network.layout)[0])
    for name, vector in session.config.algorithm.beside(state.theta).items():
        np.copyto(state.beside[name], vector)
    state.began = state.index


def _changes(config: Config, resumed: Path) -> str:
    """The end of a message: the keys of model and data with other values in the checkpoint; "" if there are none."""
    now, then = map(msgspec.to_builtins, (config, configuration.load(resumed / checkpoint.CONFIG, [])))
    keys = [(table, key) for table in ("model", "data") for key in now[table]]
    changed = [f"{table}.{key}" for table, key in keys if now[table][key] != then[table][key]]
    return f"; changed since then: {', '.join(changed)}" if changed else ""
