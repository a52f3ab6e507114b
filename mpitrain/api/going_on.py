"""Going on without ranks that are lost (`run.lost_ranks = "continue"`), in the processes of the others.

They leave for a communicator of their own. What one of them has whole of the training, as a master or a replica has,
becomes a checkpoint, and all resume: from that, or else from the newest one.
"""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import cast

import msgspec

from mpitrain import checkpoint
from mpitrain.api.options import TrainOptions
from mpitrain.api.shared import share_state
from mpitrain.checkpoint import coordination
from mpitrain.checkpoint.files import order
from mpitrain.checkpoint.lease import Holder
from mpitrain.checkpoint.writer import Saver
from mpitrain.errors import RankLost, named, some
from mpitrain.models.model import buffered
from mpitrain.monitoring.monitor import MasterMonitor
from mpitrain.monitoring.restarts import restarted
from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import agreed
from mpitrain.mpi.enduring import EnduringCommunicator
from mpitrain.training.context import Session

WHAT = "what the other ranks have"
NONE = -1  # samples of a state that is not the training's
SILENT = 0.9  # of a deadline, after which a rank that others have found silent is silent to this one, too


def prepare_for_loss(session: Session) -> None:
    """Tell all ranks what they need where another one is lost. Collective."""
    transport, saver, model = session.transport, session.saver, buffered(session.network)
    if isinstance(transport.comm, EnduringCommunicator):
        _introduce(transport, transport.comm)
    session.began = transport.clock()
    # Whichever rank is the first then writes a checkpoint with all that stands beside it.
    documents = transport.broadcast(msgspec.json.encode(dict(saver.documents) if saver else {}), "the documents")
    if saver is not None:
        saver.documents = msgspec.json.decode(documents, type=dict[str, str])
        saver.kept = saver.kept if model is None else model.kept


def _introduce(transport: Transport, communicator: EnduringCommunicator) -> None:
    """Tell all ranks this one's process, which one of its node ends if it stands still. Collective."""
    communicator.processes = transport.gather_texts(msgspec.json.encode(Holder.here()).decode(), "the processes")


def without_lost(
    transport: Transport, session: Session | None, silent: Sequence[int], options: TrainOptions
) -> tuple[Transport, TrainOptions | None]:
    """The ranks that are left, and how they go on; None where fewer than run.least_ranks are, and what they have is
    saved. `session`: what this rank had, if it was training; `silent` are known to stand still. Collective over the
    ranks that live.

    Ends the job where no training had begun, not even before an earlier loss, or it is to end with a rank.
    """
    communicator, living = cast(EnduringCommunicator, transport.comm), list(range(transport.size))
    _end_silent(transport, communicator.processes, silent)
    if session is not None and isinstance(session.monitor, MasterMonitor):
        session.monitor.progress.close()
    while True:
        with transport.blocking("MPI_Comm_shrink"):
            communicator, gone = communicator.without_lost()
        living = [rank for number, rank in enumerate(living) if number not in gone]
        lost = [rank for rank in range(transport.size) if rank not in living]
        if not (options.least_ranks if session is None else session.config.run.lost_ranks == "continue"):
            if communicator.rank == 0:
                print(f"mpitrain: {named(lost)} died; the job ends (run.lost_ranks)", file=sys.stderr, flush=True)
            transport.runtime.abort(1)
        try:
            left = Transport(communicator, transport.deadline)
            left.watch()
            _introduce(left, communicator)
            return left, _left(left, session, lost, options)
        except RankLost:  # another one, meanwhile
            continue


def _end_silent(transport: Transport, processes: Sequence[str], silent: Sequence[int]) -> None:
    """Kill the ranks of this node that stand still: else the others would wait for them in the next call of MPI."""
    beats, now = transport.heartbeats, transport.waking()
    for rank in {*silent, *beats.silent(beats.others, 0.0, now, SILENT * transport.deadline)} if processes else ():
        process = msgspec.json.decode(processes[rank], type=Holder)
        if process.lives:
            with suppress(ProcessLookupError):
                os.kill(process.process, signal.SIGKILL)


def _left(transport: Transport, session: Session | None, lost: list[int], options: TrainOptions) -> TrainOptions | None:
    """Save what the ranks have, say and record the loss, and how they go on. Collective."""
    trained = transport.gather_texts(str(0 if session is None else session.counters.trained_all), WHAT)
    kinds = transport.gather_texts(str(None if session is None else session.even_out is not None), WHAT)
    if session is not None and session.saver is not None:
        least = session.config.run.least_ranks
        options = replace(options, out=None, resume=None, continued=session.saver.folder.parent, least_ranks=least)
        if len({*kinds}) == 1:  # else some have not begun to train, and there is hardly more than is saved
            _save(session, session.saver, transport, lost)
    run, least = options.continued, options.least_ranks
    assert run is not None
    if transport.rank == 0:
        newest, _ = checkpoint.newest(run / "checkpoints")
        samples = int(order(newest)[0]) if newest else 0
        how = f"{some(transport.size, 'rank')} {'are' if transport.size > 1 else 'is'} left"
        restarted(run / "metrics.jsonl", lost, how, samples, max(map(int, trained)))
    if transport.size >= least:
        return options
    if transport.rank == 0:
        print(f"mpitrain: run.least_ranks is {least}; --resume {run} continues", file=sys.stderr, flush=True)
    transport.leave()
    return None


def _save(session: Session, saver: Saver, transport: Transport, lost: list[int]) -> None:
    """Make what a rank has a checkpoint, if one has the training whole. Collective."""
    state, monitor, evened = session.state, session.monitor, session.even_out is not None
    if session.even_out is not None:
        session.outstanding = list if session.even_out(transport, lost) else None
    counts = [int(text) for text in transport.gather_texts(str(_settled(session)), WHAT)]
    if max(counts) == NONE:
        return
    if source := counts.index(max(counts)):
        share_state(state, transport, source)
    state.seconds += transport.clock() - session.began
    if isinstance(monitor, MasterMonitor):
        state.seconds = monitor.cadence.seconds
    saver.transport = transport

    def write() -> None:
        if transport.rank == 0:
            checkpoint.clear(saver.folder)  # one that was begun may wait for a rank that is lost
            if not evened:
                coordination.save_state(saver, state, [])
                saver.settle()

    agreed(transport, write, "the checkpoint", calls_mpi=True)
    if evened:
        coordination.together(saver, state, transport)
        agreed(transport, saver.settle, "the checkpoint", calls_mpi=True)


def _settled(session: Session) -> int:
    """How many samples this rank's state has been trained on, with all others to be handed out again; NONE where its
    state is not that of the training."""
    state, outstanding = session.state, session.outstanding
    if outstanding is None:
        return NONE
    for work in outstanding():
        state.queue.give_back(work)
    state.queue.rewind()
    session.outstanding = list  # nothing more
    state.trained = state.queue.position - sum(work.count for work in state.queue.returned)
    return state.trained
