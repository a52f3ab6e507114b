"""The end of a training: last checkpoint, last evaluation, summary, closing table; or why it failed, and from where it
can be resumed."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import numpy as np

from mpitrain.api.ending import closing_rows, doubts, ending, needs, next_commands, said_before, sha256, summary_of
from mpitrain.checkpoint import last
from mpitrain.checkpoint.files import REPLACED, folders
from mpitrain.checkpoint.lease import token_of
from mpitrain.errors import BadInput, Overdue, RankLost, TrainingFailed, WireError, first_line, named, printable, say
from mpitrain.files import Record, write_below
from mpitrain.monitoring import trace
from mpitrain.monitoring.monitor import MasterMonitor
from mpitrain.monitoring.recorder import TimeRecorder
from mpitrain.monitoring.records import append, summary_text
from mpitrain.mpi import Traffic
from mpitrain.mpi.agreement import others_see
from mpitrain.signals import STATUS
from mpitrain.training.context import Session

PATIENCE = 2.0  # seconds


def finish(session: Session, monitor: MasterMonitor | None, stopped: bool, recorder: TimeRecorder | None = None) -> int:
    """Write the last checkpoint, evaluate, write the summary, print the closing table, and return the exit status.
    Collective."""
    transport = session.transport
    if monitor is not None:
        monitor.trained()
    traffic = transport.traffic
    within = traffic if session.follows else session.team.traffic if session.team is not None else Traffic()
    counts = np.array([traffic.bytes_sent, traffic.bytes_received, traffic.messages_sent, within.bytes_sent])
    if transport.rank == 0 and session.has_master:
        counts[:2] = 0  # the bytes that the server sends and receives are counted by its workers already
    transport.sum(counts, "the end")
    of_kinds = transport.stopwatch.read()
    if recorder is not None:
        trace.end(transport, session.counters, recorder)
    if session.config.run.gradient_statistics:
        session.figures.gather(transport)
    gathered = transport.gather_texts(json.dumps(of_kinds), "the ranks' times")
    of_ranks: Record = {}
    if session.config.algorithm.replicated and not session.device.phantom:
        of_ranks["replicas_identical"] = len(set(transport.gather_texts(sha256(session) or "", "the end"))) == 1
    of_ranks["time"] = [{"rank": rank, **json.loads(text)} for rank, text in enumerate(gathered)]
    status = 0
    if monitor is None:
        last.write(session.saver, session.state, session.transport)
    else:
        session.bytes_of_all = int(counts[0] + counts[1] - 2 * counts[3])
        status = _conclude(session, monitor, stopped, counts.tolist(), of_ranks)
    return int(transport.broadcast(str(status).encode(), "the end"))


def _conclude(session: Session, monitor: MasterMonitor, stopped: bool, counts: list[int], of_ranks: Record) -> int:
    """What the rank with the monitor does at the end; returns the exit status. `of_ranks`: what all ranks have told for
    the summary."""
    said = said_before(session, monitor, stopped)
    elsewhere = _save(session, monitor, stopped, needed=said is None)
    monitor.finish(evaluate=not stopped)
    reason, why = ending(session, monitor, stopped | (session.stop.flag and not monitor.evaluated))
    fields = {**summary_of(session, monitor, counts, reason), **of_ranks}
    _write_summary(session, monitor, fields, said)
    rows = closing_rows(session, monitor, fields)
    trained, run = reason == "finished" and not session.device.phantom, monitor.journal.folder
    lines = [*doubts(session, monitor), *needs(fields), *next_commands(run, monitor.results)] if trained else []
    monitor.journal.progress.table(rows + ([(reason, why)] if why else []), str(run), lines)
    if reason in ("diverged", "incomplete"):
        say(f"{reason}: {why}")
    return elsewhere or STATUS[reason]


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
        monitor.tell_checkpoints()


@contextmanager
def failures_recorded(session: Session) -> Iterator[None]:
    """Record in metrics.jsonl why a training failed, and the ranks that were silent; say where it can be resumed.

    The rank that prints the failure records it: the first rank may be the silent one, or not hear of it in time.
    """
    try:
        yield
    except RankLost as error:
        error.held = session
        raise
    except Overdue as error:
        if session.goes_on and error.silent:
            raise RankLost(error.silent, session) from error
        known = Overdue(f"{error}; {how_to_resume(session)}", error.silent)
        if not others_see(session.transport, error):
            _record(session, str(known), error.silent)
        raise known from error
    except Exception as error:
        if getattr(error, "spoken_here", True):
            ours = isinstance(error, BadInput | TrainingFailed | WireError)
            _record(session, first_line(error) if ours else f"{type(error).__name__}: {first_line(error)}")
        raise


def _record(session: Session, text: str, silent: Sequence[int] = ()) -> None:
    # A rank that was cut off from the others may fail when they have started again, in the same folder.
    if session.saver is not None and token_of(session.saver.folder.parent) in (session.token, ""):
        append(session.saver.folder.parent / "metrics.jsonl", "failed", text=printable(text), silent=silent)


def how_to_resume(session: Session) -> str:
    """A clause that says from where, and by what command, a run that has lost a rank can be resumed. A thread looks for
    checkpoints, for PATIENCE at most, since the storage may not answer."""
    saver = session.saver
    if saver is None:
        return "it leaves no checkpoint"
    found: list[Path] = []
    with suppress(BadInput):
        looking = Thread(target=lambda: found.extend(folders(saver.folder)), daemon=True)
        looking.start()
        looking.join(PATIENCE)
    run = saver.folder.parent
    if not found:
        return f"there is no checkpoint in {run} yet"
    epoch = int(found[-1].name.rstrip(REPLACED)) / session.learner.corpus.samples
    return f"to resume from epoch {epoch:.2f}: {session.command_to_resume(run)}"
