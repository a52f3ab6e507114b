"""The end of a training: last evaluation, last checkpoint, summary, closing table."""

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite, log
from pathlib import Path

import numpy as np

from mpitrain.algorithms import name_of
from mpitrain.checkpoint import coordination
from mpitrain.cli.setup import has_server, some
from mpitrain.errors import BadInput, Overdue, TrainingFailed, WireError, first_line, printable
from mpitrain.files import Record, read_text, write_whole
from mpitrain.flat import on_host
from mpitrain.monitoring import trace
from mpitrain.monitoring.monitor import MasterMonitor
from mpitrain.monitoring.progress import loss_text, seconds_text
from mpitrain.monitoring.recorder import Recorder
from mpitrain.monitoring.records import append, errors, summary_text
from mpitrain.mpi import Traffic
from mpitrain.mpi.agreement import others_see
from mpitrain.signals import STOPPED
from mpitrain.stopwatch import shares_text
from mpitrain.training import run_code
from mpitrain.training.context import Session

DIVERGED = 1000.0  # a training whose last epoch's loss reaches this multiple of the first loss has diverged
STATUS = {"finished": 0, "diverged": 1, "incomplete": 1, "stopped": STOPPED}


@contextmanager
def failures_recorded(session: Session) -> Iterator[None]:
    """Record in metrics.jsonl why a training failed, and the ranks that were silent.

    The rank that says it records it: the first may be the silent one, or not hear of it before the job ends.
    """
    try:
        yield
    except Exception as error:
        silent = error.silent if isinstance(error, Overdue) else ()
        told_by_others = isinstance(error, Overdue) and others_see(session.transport, error) > 0
        if session.saver is not None and not told_by_others and getattr(error, "spoken_here", True):
            path = session.saver.folder.parent / "metrics.jsonl"
            ours = isinstance(error, BadInput | Overdue | TrainingFailed | WireError)
            text = first_line(error) if ours else f"{type(error).__name__}: {first_line(error)}"
            append(path, "failed", text=printable(text), silent=silent)
        raise


def finish(session: Session, monitor: MasterMonitor | None, stopped: bool, recorder: Recorder | None = None) -> int:
    """Evaluate, write the last checkpoint and the summary, print the closing table, and return the exit status."""
    state, transport = session.state, session.transport
    seconds = monitor.cadence.seconds if monitor else 0.0
    traffic = transport.traffic
    within = traffic if session.follows else session.team.traffic if session.team is not None else Traffic()
    counts = np.array(
        [traffic.bytes_sent, traffic.bytes_received, traffic.messages_sent, within.bytes_sent], dtype=np.int64
    )
    if transport.rank == 0 and has_server(session.config) and transport.size > 1:
        counts[:] = 0  # the server's side mirrors its workers'
    transport.sum(counts, "the end")
    of_kinds = transport.stopwatch.read()
    if recorder is not None:
        trace.end(session, recorder)
    gathered = transport.gather_texts(json.dumps(of_kinds), "the ranks' times")
    replicas = None
    if session.config.algorithm.replicated and not session.device.phantom:
        digests = transport.gather_texts(hashlib.sha256(state.little_endian()).hexdigest(), "the end")
        replicas = len(set(digests)) == 1
    reason = ""
    if monitor is not None:
        times: list[dict[str, float]] = [{"rank": rank, **json.loads(text)} for rank, text in enumerate(gathered)]
        monitor.finish(evaluate=not stopped)
        stopped |= session.stop.flag and not monitor.evaluated
        reason, why = _ending(session, monitor, stopped)
        fields = _summary(session, monitor, seconds, counts.tolist(), reason)
        if replicas is not None:
            fields["replicas_identical"] = replicas
        fields["time"] = times
        path = monitor.folder / "summary.json"
        said = _said_before(fields, path) if not session.counters.trained_now and _same_code(session) else None
        monitor.checkpoint(lambda: coordination.together(session, [], last=True, needed=said is None))
        monitor.write("end", **(said or fields))
        if said is None:
            transport.alive_while(lambda: write_whole(path, summary_text(fields)))
        else:
            monitor.progress.line("nothing was left to train: the run folder is unchanged")
        monitor.progress.close()
        rows = _closing_rows(session, monitor, fields, seconds, counts.tolist(), times)
        if why:
            rows.append((reason, why))
        monitor.progress.table(rows, str(monitor.folder))
        if STATUS[reason] == 1:
            print(f"mpitrain: {reason}: {why}", file=sys.stderr, flush=True)
    else:
        coordination.together(session, [], last=True)
    if recorder is not None:
        trace.write(session, recorder, monitor)
    return STATUS[transport.broadcast(reason.encode(), "the end").decode()]


def _ending(session: Session, monitor: MasterMonitor, stopped: bool) -> tuple[str, str]:
    """How the training ended: a key of STATUS, and the reason unless it is "finished"."""
    state = session.state
    if stopped:
        return "stopped", f"by a signal; {'--resume continues' if session.saver else 'it left no checkpoint'}"
    diverged = _divergence(monitor.last_loss, state.losses.first, session.network.classes)
    if not diverged and not session.device.phantom and not np.isfinite(on_host(state.model)).all():
        diverged = "the final parameters are not finite"
    if diverged:
        return "diverged", f"{diverged}; a smaller training.learning_rate may help"
    if state.trained < state.queue.total:
        return "incomplete", f"only {state.trained:,} of {state.queue.total:,} samples were trained on"
    return "finished", ""


def _divergence(last: float | None, first: float | None, classes: int) -> str:
    """A message if the training diverged although its losses stayed finite, otherwise "".

    The last epoch's loss is compared with that of the first minibatch, or with that of guessing if it is larger.
    """
    least = max(first if first is not None and isfinite(first) else 0.0, log(classes))
    if last is None or last <= DIVERGED * least:
        return ""
    return f"the last epoch's loss is {last:.3g}, the first minibatch's was {least:.3g}"


def _said_before(fields: Record, path: Path) -> Record | None:
    """The existing summary of a run that was resumed with nothing left to train: it contains more than a new one."""
    try:
        before: Record = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return None
    keys = ("exit_reason", "parameters_sha256")
    return before if isinstance(before, dict) and all(before.get(key) == fields[key] for key in keys) else None


def _same_code(session: Session) -> bool:
    """Whether the checkpoint that was resumed holds the code of the network."""
    resumed, documents = session.resumed, session.network.documents
    names = [name for name in documents if Path(name).is_relative_to(run_code.FOLDER)]
    try:
        return resumed is None or all(read_text(resumed / name) == documents[name] for name in names)
    except (OSError, ValueError):
        return False


def _summary(session: Session, monitor: MasterMonitor, seconds: float, counts: list[int], reason: str) -> Record:
    state, counters, ranks = session.state, session.counters, session.transport.size
    before = monitor.cadence.seconds_before
    return {
        "algorithm": name_of(session.config.algorithm),
        "ranks": ranks,
        **({"simulated": True} if session.transport.runtime.simulated else {}),
        **({"phantom": True} if session.device.phantom else {}),
        "workers": session.workers,
        "samples": state.trained,
        "seconds": seconds,
        "samples_per_second": counters.trained_now / max(seconds - before, 1e-9),
        "train_loss": monitor.last_loss,
        **dict.fromkeys(("test_loss", "test_error", *monitor.results)),
        **(monitor.results if monitor.evaluated else {}),
        "bytes_sent": counts[0],
        "bytes_received": counts[1],
        "messages_sent": counts[2],
        **({"bytes_sent_within_teams": counts[3]} if session.team is not None else {}),
        "exchange": session.exchange,
        **counters.summary(),
        "parameters_sha256": None if session.device.phantom else hashlib.sha256(state.little_endian()).hexdigest(),
        "resumed_samples": counters.trained_before,
        "resumed_seconds": before,
        "exit_reason": reason,
    }


def _closing_rows(
    session: Session,
    monitor: MasterMonitor,
    fields: Record,
    seconds: float,
    counts: list[int],
    times: list[dict[str, float]],
) -> list[tuple[str, str]]:
    counters, algorithm = session.counters, session.config.algorithm
    speed = counters.trained_now / max(seconds - monitor.cadence.seconds_before, 1e-9)
    rate = f", {speed:,.0f} a second" if speed else ""  # no speed if nothing was left to train
    since = " since the resume" if counters.trained_before else ""
    mean, most = counters.staleness
    stale = "" if mean is None else f", staleness {mean:.1f} (at most {most})"
    sent, received, _, within = counts
    exchanged = f"{(sent + received - 2 * within) / 1e6:,.1f} MB{since} ({session.exchange})"
    if session.team is not None:
        exchanged += f", and {2 * within / 1e6:,.1f} MB within teams"
    rows = [
        ("algorithm", f"{name_of(algorithm)}, {some(session.workers, 'worker')}"),
        ("samples", f"{session.state.trained:,} in {seconds_text(seconds)} s{rate}"),
        ("updates", f"{counters.updates:,}{since}{stale}"),
        ("exchanged", exchanged),
        ("time", shares_text(times[has_server(session.config) and len(times) > 1 :])),
    ]
    if counters.refusals:
        rows.append(("refused", f"{some(counters.refusals, 'gradient')} with elements that are not finite"))
    if monitor.last_loss is not None:
        rows.append(("train loss", loss_text(monitor.last_loss)))
    return rows + [(f"{name} error", f"{share:.2%}") for name, share in errors(fields).items()]
