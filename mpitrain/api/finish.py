"""The end of a training: last checkpoint, last evaluation, summary, closing table."""

import json
import shlex
from contextlib import suppress
from math import isfinite, log
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain.algorithms import name_of
from mpitrain.checkpoint import last
from mpitrain.data import origin
from mpitrain.errors import BadInput, named, say, some
from mpitrain.files import Record, read_text, write_below
from mpitrain.flat import on_host, parameters_sha256
from mpitrain.monitoring import trace
from mpitrain.monitoring.monitor import MasterMonitor
from mpitrain.monitoring.progress import loss_text, seconds_text
from mpitrain.monitoring.recorder import TimeRecorder
from mpitrain.monitoring.records import bottlenecks, merits, records_of, summary_text
from mpitrain.mpi import Traffic
from mpitrain.sampling.means import Losses
from mpitrain.signals import STOPPED
from mpitrain.stopwatch import shares_text
from mpitrain.training.context import Session

DIVERGED = 1000.0  # a training whose last epoch's loss reaches this multiple of the first loss has diverged
STATUS = {"finished": 0, "diverged": 1, "incomplete": 1, "stopped": STOPPED, "moved": 1, "deleted": 1}


def finish(session: Session, monitor: MasterMonitor | None, stopped: bool, recorder: TimeRecorder | None = None) -> int:
    """Write the last checkpoint, evaluate, write the summary, print the closing table, and return the exit status."""
    transport = session.transport
    if monitor is not None:
        monitor.trained()
    traffic = transport.traffic
    within = traffic if session.follows else session.team.traffic if session.team is not None else Traffic()
    counts = np.array(
        [traffic.bytes_sent, traffic.bytes_received, traffic.messages_sent, within.bytes_sent], dtype=np.int64
    )
    if transport.rank == 0 and session.has_master:
        counts[:] = 0  # what the server sends and receives is counted by its workers already
    transport.sum(counts, "the end")
    of_kinds = transport.stopwatch.read()
    if recorder is not None:
        trace.end(transport, session.counters, recorder)
    if session.config.run.gradient_statistics:
        session.figures.gather(transport)
    gathered = transport.gather_texts(json.dumps(of_kinds), "the ranks' times")
    replicas = None
    if session.config.algorithm.replicated and not session.device.phantom:
        replicas = len(set(transport.gather_texts(sha256(session) or "", "the end"))) == 1
    status = 0
    if monitor is None:
        last.write(session.saver, session.state, session.transport)
    else:
        session.bytes_of_all = int(counts[0] + counts[1] - 2 * counts[3])
        said = _said_before(session, monitor, stopped)
        elsewhere = _save(session, monitor, stopped, needed=said is None)
        monitor.finish(evaluate=not stopped)
        reason, why = _ending(session, monitor, stopped | (session.stop.flag and not monitor.evaluated))
        fields = _summary(session, monitor, counts.tolist(), reason)
        if replicas is not None:
            fields["replicas_identical"] = replicas
        fields["time"] = [{"rank": rank, **json.loads(text)} for rank, text in enumerate(gathered)]
        _write_summary(session, monitor, fields, said)
        rows = _closing_rows(session, monitor, fields)
        trained = reason == "finished" and not session.device.phantom
        run = monitor.journal.folder
        lines = [*_doubts(session, monitor), *_needs(fields), *_next(run)] if trained else []
        monitor.journal.progress.table(rows + ([(reason, why)] if why else []), str(run), lines)
        if reason in ("diverged", "incomplete"):
            say(f"{reason}: {why}")
        status = elsewhere or STATUS[reason]
    return int(transport.broadcast(str(status).encode(), "the end"))


def _ending(session: Session, monitor: MasterMonitor, stopped: bool) -> tuple[str, str]:
    """How the training ended: a key of STATUS, and the reason unless it is "finished"."""
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


def _save(session: Session, monitor: MasterMonitor, stopped: bool, needed: bool) -> int:
    """Write the last checkpoint, with the statistics measured for the last evaluation, before that evaluation, in which
    a user's network may fail. Returns an exit status: 0 unless the run folder is another one now."""
    written, journal = list[last.Written | None](), monitor.journal
    try:
        if not stopped and monitor.evaluations is not None:
            monitor.evaluations.measure()
    finally:
        to = session.saver, session.state, session.transport, session.config.run.fallback
        monitor.checkpoint(lambda: written.append(last.write(*to, journal.find, needed)))
    before, there, found = journal.folder, journal.find(), written[0]
    run = there if found is None else found.run
    if run is None:
        raise BadInput(f"{before}: was deleted meanwhile")
    if run == before:
        return 0
    journal.move(run)
    why = f"{before}: was moved to {run} meanwhile"
    if found is not None and found.fault:
        lacking = f", without the own vectors of {named(found.lacking)}" if found.lacking else ""
        why = f"{found.fault}; the last checkpoint is in {run}{lacking}"
    journal.write("warning", text=why)
    say(f"{why}; to resume: {session.command_to_resume(run)}")
    return 2 if found is not None and found.fault and there is not None else 1


def _write_summary(session: Session, monitor: MasterMonitor, fields: Record, said: Record | None) -> None:
    """Write the summary, and the last record, by which it is known to be there; `said`: an existing summary, kept if
    the exit reason is the same."""
    journal = monitor.journal
    if said is not None and said["exit_reason"] != fields["exit_reason"]:
        said = None
    if said is None:
        text = summary_text(fields)
        session.transport.alive_while(lambda: write_below(journal.folder, "summary.json", text))
    else:
        epochs = session.config.training.epochs
        journal.progress.line(f"nothing left to train (training.epochs = {epochs:g}): model and results are unchanged")
    journal.write("end", **(said or fields))
    journal.progress.close()
    if session.saver is not None:
        with suppress(BadInput):
            session.saver.settle()  # the best model
        monitor.checkpoints.tell()


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


def _doubts(session: Session, monitor: MasterMonitor) -> list[str]:
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


def _needs(fields: Record) -> list[str]:
    """A line that says what slows the training down, if anything does, and that advise may find better settings."""
    found = ", ".join(bottlenecks(fields))
    return [f"{found}: `python -m mpitrain advise` looks for what is sooner (docs/advise.md)"] if found else []


def _next(run: Path) -> list[str]:
    """Commands for what can be done with the run now."""
    folder = shlex.quote(str(run))
    words = (f"evaluate {folder}", f"report {folder}", f"export {folder} --format safetensors")
    return [f"python -m mpitrain {each}" for each in words]


def _said_before(session: Session, monitor: MasterMonitor, stopped: bool) -> Record | None:
    """The existing summary of a run that was resumed with nothing left to train: it contains more than a new one."""
    if session.counters.trained_now or not _same_code(session):
        return None
    try:
        before = json.loads(read_text(monitor.journal.folder / "summary.json"))
    except (OSError, ValueError, RecursionError):
        return None
    now = {"exit_reason": _ending(session, monitor, stopped)[0], "parameters_sha256": sha256(session)}
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


def _summary(session: Session, monitor: MasterMonitor, counts: list[int], reason: str) -> dict[str, Any]:
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


def _closing_rows(session: Session, monitor: MasterMonitor, fields: dict[str, Any]) -> list[tuple[str, str]]:
    counters, algorithm = session.counters, session.config.algorithm
    trained = counters.trained_now
    refused, dropped = counters.refusals, counters.samples_dropped
    since = " since the resume" if counters.trained_before else ""
    rate = f", {fields['samples_per_second']:,.0f} a second{since}" if trained else ""
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
