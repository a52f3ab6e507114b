"""How a training ended, what makes its result doubtful, and what can be done next."""

import shlex
from math import isfinite, log
from pathlib import Path

import numpy as np

from mpitrain.data import origin
from mpitrain.files import Record
from mpitrain.flat import on_host
from mpitrain.monitoring.evaluation import Results
from mpitrain.monitoring.monitor import MasterMonitor
from mpitrain.monitoring.records import bottlenecks
from mpitrain.sampling.means import Losses
from mpitrain.training.context import Session

DIVERGED = 1000.0  # a training whose last epoch's loss reaches this multiple of the first loss has diverged


def ending(session: Session, monitor: MasterMonitor, stopped: bool) -> tuple[str, str]:
    """How the training ended: a key of `signals.STATUS`, and the reason unless it is "finished"."""
    state, left = session.state, "--resume continues" if session.saver else "it left no checkpoint"
    if stopped:
        gone = monitor.journal.gone
        return (gone, f"the run folder was; {left}") if gone else ("stopped", f"by a signal; {left}")
    diverged = _divergence(monitor.last_loss, state.losses, session.network.classes)
    if not diverged and not session.device.phantom and not np.isfinite(on_host(state.model)).all():
        diverged = "the final parameters are not finite"
    if diverged:
        return "diverged", f"{diverged}; a smaller training.learning_rate may help"
    if state.trained < state.queue.total:
        return "incomplete", f"only {state.trained:,} of {state.queue.total:,} samples were trained on"
    return "finished", ""


def _divergence(last: float | None, losses: Losses, classes: int) -> str:
    """A message if the training diverged although its losses stayed finite, in its last epoch or in one before it,
    otherwise ""."""
    least, highest = _of_start(losses, classes), losses.highest
    for epoch, loss in (("the last epoch's loss is", last), ("an epoch's loss was", highest)):
        if least > 0 and loss is not None and loss > DIVERGED * least:
            return f"{epoch} {loss:.3g}, the first minibatch's was {least:.3g}"
    return ""


def _of_start(losses: Losses, classes: int) -> float:
    """The loss of the first minibatch, or the loss of guessing if that is larger and there are `classes`."""
    first = losses.first
    return max(first if first is not None and isfinite(first) else 0.0, log(max(classes, 1)))


def doubts(session: Session, monitor: MasterMonitor) -> list[str]:
    """Warnings that a training learned nothing: its loss is above that of its start, or its error is within three
    standard deviations of the error of always guessing the most frequent class."""
    least, last = _of_start(session.state.losses, session.network.classes), monitor.last_loss
    found = []
    if last is not None and 0 < least < last:
        found.append(f"the last epoch's loss is {last:.3g}, above the first minibatch's {least:.3g}")
    for key, value in monitor.results.items():
        if key in ("dev_loss", "test_loss") and isinstance(value, float) and not isfinite(value):
            found.append(f"the {key.replace('_', ' ')} is not finite")
    counts, part = origin.class_counts(monitor.journal.folder), "test" if "test_error" in monitor.results else "dev"
    error, evaluations = monitor.results.get(f"{part}_error"), monitor.evaluations
    if evaluations is not None and error is not None and any(counts):
        chance = 1 - max(counts) / sum(counts)
        sizes = evaluations.evaluation.samples
        samples = next((size for name, size in sizes.items() if name.startswith(part)), 1)
        if chance and error > chance - 3 * (chance * (1 - chance) / samples) ** 0.5:
            found.append(f"the {part} error of {error:.1%} is that of guessing, {chance:.1%}")
    return [f"warning: {text}; a smaller training.learning_rate or a longer training may help" for text in found]


def needs(fields: Record) -> list[str]:
    """A line that says what slows the training down, if anything does, and that advise may find better settings."""
    found = ", ".join(bottlenecks(fields))
    return [f"{found}: `python -m mpitrain advise` looks for what is sooner (docs/advise.md)"] if found else []


def next_commands(run: Path, results: Results) -> list[str]:
    """Commands for what can be done with the run now; `results`: of the last evaluation, on a part dev or test if the
    data have one."""
    folder = shlex.quote(str(run))
    held_out = [f"evaluate {folder}"] * bool(results.keys() & {"dev_loss", "test_loss"})
    words = (*held_out, f"report {folder}", f"export {folder} --format safetensors")
    return [f"python -m mpitrain {each}" for each in words]
