"""The summary of a training, as `summary.json` has it, and its rows of the closing table."""

import json
from pathlib import Path
from typing import Any

from mpitrain.algorithms import name_of
from mpitrain.api.ending import ending
from mpitrain.errors import some
from mpitrain.files import Record, read_text
from mpitrain.flat import parameters_sha256
from mpitrain.monitoring.monitor import MasterMonitor
from mpitrain.monitoring.progress import loss_text, seconds_text
from mpitrain.monitoring.records import merits, rate_text, records_of
from mpitrain.stopwatch import shares_text
from mpitrain.training.context import Session


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
