"""The end of a training: last checkpoint, last evaluation, summary, closing table."""

import json
from contextlib import suppress

import numpy as np

from mpitrain.api.ending import closing_rows, doubts, ending, needs, next_commands, said_before, sha256, summary_of
from mpitrain.checkpoint import last
from mpitrain.errors import BadInput, named, say
from mpitrain.files import Record, write_below
from mpitrain.monitoring import trace
from mpitrain.monitoring.monitor import MasterMonitor
from mpitrain.monitoring.recorder import TimeRecorder
from mpitrain.monitoring.records import summary_text
from mpitrain.mpi import Traffic
from mpitrain.signals import STATUS
from mpitrain.training.context import Session


def finish(session: Session, monitor: MasterMonitor | None, stopped: bool, recorder: TimeRecorder | None = None) -> int:
    """Write the last checkpoint, evaluate, write the summary, print the closing table, and return the exit status.
    Collective."""
    transport = session.transport
    if monitor is not None:
        monitor.trained()
    traffic = transport.traffic
    within = traffic if session.follows else session.team.traffic if session.team is not None else Traffic()
    counts = np.array(
        [traffic.bytes_sent, traffic.bytes_received, traffic.messages_sent, within.bytes_sent], dtype=np.int64
    )
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
