"""How a training ended: its summary and closing table, what makes its result doubtful, and what can be done next."""

import json
import shlex
from math import isfinite, log
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain.algorithms import name_of
from mpitrain.data import origin
from mpitrain.errors import some
from mpitrain.files import Record, read_text
from mpitrain.flat import on_host, parameters_sha256
from mpitrain.monitoring.evaluation import Results
from mpitrain.monitoring.journal import loss_text, seconds_text
from mpitrain.monitoring.monitor import MasterMonitor
from mpitrain.monitoring.records import bottlenecks, merits, rate_text, records_of
from mpitrain.sampling.means import Losses
from mpitrain.stopwatch import shares_text
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
            return f"{epoch} {loss:.3g}, at the start it was {least:.3g}"
    return ""


def _of_start(losses: Losses, classes: int) -> float:
    """The loss of the first samples, or the loss of guessing if that is larger and there are `classes`."""
    first = losses.first
    return max(first if first is not None and isfinite(first) else 0.0, log(max(classes, 1)))


def doubts(session: Session, monitor: MasterMonitor) -> list[str]:
    """Warnings that a training learned nothing: its loss is above that of its start, or its error is within three
    standard deviations of the error of always guessing the most frequent class."""
    least, last = _of_start(session.state.losses, session.network.classes), monitor.last_loss
    found = []
    if last is not None and 0 < least < last:
        found.append(f"the last epoch's loss is {last:.5g}, above {least:.5g}, that of the start")
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
            its = f"the {part} error of {error:.1%} on {samples:,} samples"
            found.append(f"{its} may be that of guessing, {chance:.1%}")
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


def summary_of(session: Session, monitor: MasterMonitor, counts: list[int], reason: str) -> dict[str, Any]:
    """The fields of `summary.json`, but for those that all ranks tell. `counts`: bytes sent and received, messages, and
    bytes sent within teams, of all ranks; `reason`: how the training ended."""
    state, counters, ranks = session.state, session.counters, session.transport.size
    busy = session.transport.runtime.pace.link_busy()
    seconds, before = monitor.cadence.seconds, monitor.cadence.seconds_before
    restarts = [*records_of(monitor.journal.folder / "metrics.jsonl", "restart")][::-1]
    speed = counters.trained_now / max(seconds - before, 1e-9) or counters.trained_before / max(before, 1e-9)
    return {
        "algorithm": name_of(session.config.algorithm),
        "ranks": ranks,
        **({"simulated": True} if session.transport.runtime.simulated else {}),
        **({"phantom": True} if session.device.phantom else {}),
        "workers": session.workers,
        "samples": state.trained,
        "seconds": seconds,
        "samples_per_second": speed,  # of the earlier training if nothing was left
        "train_loss": monitor.last_loss,
        **dict.fromkeys(("test_loss", "test_error", *monitor.results)),
        **(monitor.results if monitor.evaluated else {}),
        "bytes_sent": counts[0],
        "bytes_received": counts[1],
        "messages_sent": counts[2],
        **({"bytes_sent_within_teams": counts[3]} if session.team is not None else {}),
        "exchange": session.exchange,
        **counters.summary(),
        **({"link_busy_seconds": busy} if busy else {}),
        "parameters_sha256": sha256(session),
        "resumed_samples": counters.trained_before,
        "resumed_seconds": before,
        "restarts": len(restarts),
        "lost_ranks": [pair for each in restarts if isinstance(told := each.get("lost_ranks"), list) for pair in told],
        "samples_repeated": sum(count for each in restarts if isinstance(count := each.get("repeated"), int)),
        "exit_reason": reason,
    }


def closing_rows(session: Session, monitor: MasterMonitor, fields: dict[str, Any]) -> list[tuple[str, str]]:
    """The rows of the closing table for a whole summary: names and texts."""
    counters, algorithm = session.counters, session.config.algorithm
    trained = counters.trained_now
    refused, dropped = counters.refusals, counters.samples_dropped
    since = " since the resume" if counters.trained_before else ""
    rate = f", {rate_text(fields['samples_per_second'])} a second{since}" if trained else ""
    mean, most = fields["staleness_mean"], fields["staleness_max"]
    stale = "" if mean is None or not most else f", staleness {mean:.1f} (at most {most})"
    exchanged = f"{(session.bytes_exchanged() or 0) / 1e6:,.1f} MB{since} ({session.exchange})"
    if session.team is not None:
        exchanged += f", and {2 * fields['bytes_sent_within_teams'] / 1e6:,.1f} MB within teams"
    again = f"{fields['restarts']}; {fields['samples_repeated']:,} samples were trained on again"
    rows = [
        ("algorithm", f"{name_of(algorithm)}, {some(session.workers, 'worker')}"),
        ("samples", f"{session.state.trained:,} in {seconds_text(fields['seconds'])} s{rate}"),
        ("updates", trained and f"{counters.updates:,}{since}{stale}"),
        ("exchanged", trained and session.exchange != "none" and exchanged),
        ("time", trained and shares_text(fields["time"][session.has_master :])),
        ("refused", refused and f"{some(refused, 'gradient')} with elements that are not finite"),
        ("dropped", dropped and f"gradients of {dropped:,} samples, too stale; trained on again"),
        ("restarts", fields["restarts"] and again),
        ("train loss", monitor.last_loss is not None and loss_text(monitor.last_loss)),
    ]
    return [(name, text) for name, text in rows if text] + merits(fields)


def said_before(session: Session, monitor: MasterMonitor, stopped: bool) -> Record | None:
    """The existing summary of a run that was resumed with nothing left to train: it contains more than a new one."""
    if session.counters.trained_now or not _same_code(session):
        return None
    try:
        before = json.loads(read_text(monitor.journal.folder / "summary.json"))
    except (OSError, ValueError, RecursionError):
        return None
    now = {"exit_reason": ending(session, monitor, stopped)[0], "parameters_sha256": sha256(session)}
    return before if isinstance(before, dict) and all(before.get(key) == now[key] for key in now) else None


def sha256(session: Session) -> str | None:
    """The SHA-256 of the model; None for a phantom, which has no values."""
    return None if session.device.phantom else parameters_sha256(session.state.model)


def _same_code(session: Session) -> bool:
    """Whether the checkpoint that was resumed holds the code of network and data."""
    resumed, documents = session.resumed, session.documents
    names = [name for name in documents if len(Path(name).parts) > 1]
    try:
        return resumed is None or all(read_text(resumed / name) == documents[name] for name in names)
    except (OSError, ValueError):
        return False
