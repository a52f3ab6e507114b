"""Going on without ranks that are lost (`run.lost_ranks = "continue"`), in the processes of the others.

The living ranks leave for a communicator of their own. If one of them, as a master or with a replica, has the whole
state of the training, that becomes a checkpoint. All resume from it, or else from the newest checkpoint.
"""

import os
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Literal, cast

import msgspec

from mpitrain import checkpoint
from mpitrain.api.options import TrainOptions
from mpitrain.api.shared import share_state
from mpitrain.api.spares import SPARE
from mpitrain.checkpoint import Draft, coordination
from mpitrain.checkpoint.files import folders, order
from mpitrain.checkpoint.lease import Holder
from mpitrain.checkpoint.writer import Saver
from mpitrain.errors import BadInput, Overdue, RankLost, named, say, some
from mpitrain.monitoring.monitor import MasterMonitor
from mpitrain.monitoring.restarts import ended, restarted
from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import agreed, of_first
from mpitrain.mpi.enduring import EnduringCommunicator
from mpitrain.signals import STATUS, STOPPED
from mpitrain.start import stopped_ranks
from mpitrain.training.context import Session

WHAT = "what the other ranks have"
NONE = -1  # instead of a number of samples: this rank's state is not that of the whole training
ENDING, POLLS = 2.0, 40  # seconds that a killed process may take to end; polls in that time
SILENT = 0.9  # of a deadline, after which a rank that others have found silent is silent to this one, too


class Had(msgspec.Struct):
    """What a rank had of the training when others were lost."""

    kind: Literal["spare", "nothing", "state", "replica"]  # a replica may differ from the others'
    run: str = ""  # the run folder
    trained: int = 0  # samples, of all ranks
    ranks: int = 0  # that trained
    least_ranks: int = 0


def introduce(transport: Transport) -> None:
    """Tell all ranks each other's processes, so that a rank can end a stopped one of its node. Collective."""
    if isinstance(transport.comm, EnduringCommunicator):
        own = msgspec.json.encode(Holder.here()).decode()
        transport.comm.processes = transport.gather_texts(own, "the processes")


def prepare_for_loss(session: Session) -> None:
    """Give all ranks what they need if another one is lost. Collective."""
    transport, saver = session.transport, session.saver
    session.began = transport.clock()
    transport.runtime.grace = inf  # a rank at work joins the others when it is done
    # The rank that is the first after a loss writes a checkpoint, with these documents.
    documents = transport.broadcast(msgspec.json.encode(dict(saver.documents) if saver else {}), "the documents")
    if saver is not None:
        saver.documents = msgspec.json.decode(documents, type=dict[str, str])
        saver.kept = session.network.kept


class LostRanks:
    """What this rank held when others were lost (a session, if it was training), until it is saved. All living ranks
    make one of these, leave together and resume together."""

    def __init__(self, transport: Transport, error: RankLost, options: TrainOptions | None) -> None:
        # A spare has nothing to save, and may be ahead of the others, who have: it is one until it trains.
        self._spare = error.held is SPARE or bool(error.held is None and options and options.spare)
        self._session = None if self._spare else cast("Session | None", error.held)
        self._first, self._living = transport, list(range(transport.size))
        #: Whether the training goes on: by the session's configuration, or as it was already resuming after a loss.
        resumes = self._spare or bool(options and options.least_ranks)
        self._goes_on = resumes if self._session is None else self._session.goes_on
        self._keeps_own = False  # whether the checkpoint has vectors of each rank, such as residuals, beside the state

    def leave(self, transport: Transport, silent: Sequence[int]) -> Transport:
        """A transport of the ranks that are left, after ending `silent` ones. Ends the job if it is not to go on."""
        beats, communicator = transport.heartbeats, cast(EnduringCommunicator, transport.comm)
        found = beats.silent(beats.others, 0.0, transport.waking(), SILENT * transport.deadline)
        _end_silent(transport, communicator, {*silent, *found})
        if self._session is not None:
            self._session.journal.progress.close()
        while True:
            processes = communicator.processes
            communicator, gone = communicator.without_lost(transport.deadline)
            communicator.processes = [each for number, each in enumerate(processes) if number not in gone]
            self._living = [rank for number, rank in enumerate(self._living) if number not in gone]
            try:
                left = Transport(communicator, transport.deadline, transport.runtime)
                if not self._goes_on:
                    self._end(left, "the job ends (run.lost_ranks)")
                return left
            except RankLost:  # another rank was lost meanwhile
                continue
            except Overdue as error:
                if not error.silent:
                    raise
                _end_silent(transport, communicator, error.silent)

    def resumed(self, transport: Transport, options: TrainOptions) -> TrainOptions | int:
        """Save what the ranks have, and say and record the loss. Returns the options to resume with; or an exit status,
        if fewer than run.least_ranks are left, or the training has ended. Collective; raises BadInput, and RankLost,
        after which it can be called again."""
        session = self._session
        had = [msgspec.json.decode(text, type=Had) for text in transport.gather_texts(self._had(), WHAT)]
        one = next((each for each in had if each.run), None)
        if one is not None:
            told = replace(options, out=None, resume=None, continued=Path(one.run))
            options = replace(told, least_ranks=one.least_ranks, ranks=one.ranks)
        run = options.continued
        if run is None or not options.ranks:
            self._end(transport, "none is left that has trained")
            return STOPPED
        if reason := of_first(transport, lambda: ended(run / "metrics.jsonl").encode(), "the end").decode():
            return STATUS[reason]  # the first rank may have left before it heard of the loss
        active = [each.kind for each in had if each.kind != "spare"]
        if len({*active}) == 1:  # else some have not begun to train, and there is hardly more than is saved
            part = transport if len(active) == transport.size else transport.first(len(active))
            if part is not None and session is not None and session.saver is not None:
                self._save(session, session.saver, part)
        count = min(options.ranks, transport.size)
        if transport.rank == 0:
            newest, _ = checkpoint.newest(run / "checkpoints")
            samples = int(order(newest)[0]) if newest else 0
            how = f"{some(count, 'rank')} {'train on' if count > 1 else 'trains on'}"
            restarted(run / "metrics.jsonl", self._lost, how, samples, max(each.trained for each in had))
        if count >= options.least_ranks:
            return replace(options, spare=self._spare)
        if transport.rank == 0:
            then = f"--resume {run} continues" if newest else "there is no checkpoint to continue from"
            say(f"run.least_ranks is {options.least_ranks}; {then}")
        return STOPPED

    def _had(self) -> str:
        session, spare = self._session, self._spare
        if session is None or session.saver is None:
            return msgspec.json.encode(Had("spare" if spare else "nothing")).decode()
        kind: Literal["state", "replica"] = "state" if session.even_out is None else "replica"
        run, size, least = session.saver.folder.parent, session.transport.size, session.config.run.least_ranks
        return msgspec.json.encode(Had(kind, str(run), session.counters.trained_all, size, least)).decode()

    def _end(self, transport: Transport, how: str) -> None:
        if transport.rank == 0:
            say(f"{named(self._lost)} died; {how}")
        transport.runtime.abort(1)

    @property
    def _lost(self) -> list[int]:
        return [rank for rank in range(self._first.size) if rank not in self._living]

    def _save(self, session: Session, saver: Saver, transport: Transport) -> None:
        """Write a checkpoint of the state of a rank that has the whole training, if there is one. Collective."""
        state, monitor = session.state, session.monitor
        if isinstance(monitor, MasterMonitor) and monitor.evaluations is not None:
            monitor.evaluations.settle_copies(transport)
        if session.even_out is not None:
            self._keeps_own, lost = True, [rank for rank in self._lost if rank in session.members]  # and no spare
            session.outstanding, session.even_out = list if session.even_out(transport, lost) else None, None
        counts = [int(text) for text in transport.gather_texts(str(_settled(session)), WHAT)]
        if max(counts) == NONE:
            return
        if source := counts.index(max(counts)):
            if transport.rank != source:
                session.outstanding = None  # a rank that is lost now may leave half of it here
            share_state(state, transport, source)
            session.outstanding = list
        state.seconds += transport.clock() - session.began
        session.began = transport.clock()
        if isinstance(monitor, MasterMonitor):
            state.seconds = monitor.cadence.seconds
        saver.transport = transport

        def write() -> None:
            if transport.rank == 0:
                checkpoint.clear(saver.folder)  # one that was begun may wait for a rank that is lost
                if not self._keeps_own:
                    coordination.save_state(saver, state, [])
                    if _written(saver, state.trained):
                        _delete_after(saver.folder, state.trained)

        agreed(transport, write, "the checkpoint", calls_mpi=True)
        if self._keeps_own:
            coordination.together(saver, state, transport)
            agreed(transport, lambda: _written(saver, state.trained), "the checkpoint", calls_mpi=True)


def _written(saver: Saver, samples: int) -> bool:
    """Wait for this rank's part of the checkpoint of this many samples. Returns whether it was written; if it was not,
    a warning says why. Faults of other files, such as the checkpoint that a lost rank left unfinished, do not count."""
    try:
        saver.settle()
        fault = dict(saver.outcomes()).get(Draft(saver.folder, samples).final, "")  # of one that was not begun
    except BadInput as error:
        fault = str(error)
    if fault:
        say(f"warning: {fault}; what came after the newest checkpoint is trained again")
    return not fault


def _delete_after(folder: Path, samples: int) -> None:
    """Delete the checkpoints after more than this many samples. In a checkpoint between two averages, some samples are
    only in the own vectors of each rank; the living ranks would go on without those of the lost rank."""
    for each in folders(folder):
        if int(order(each)[0]) > samples:
            checkpoint.delete(each)


def _end_silent(transport: Transport, communicator: EnduringCommunicator, silent: Iterable[int]) -> None:
    """Kill the silent ranks of this node, for which others would wait in the next call of MPI. If some of them are
    stopped, or end as another rank has killed them, only those are killed: the rest may be silent only because they
    wait for these in a call that blocks."""
    ranks = silent if communicator.processes else ()
    processes = [msgspec.json.decode(communicator.processes[rank], type=Holder) for rank in ranks]

    def still() -> list[Holder]:
        stopped = stopped_ranks().values()
        return [each for each in processes if each.lives is False or each.process in stopped]

    end = transport.clock() + ENDING
    while not (found := still()) and processes and transport.clock() < end:
        transport.sleep(ENDING / POLLS)
    for process in found or processes:
        if process.lives:
            with suppress(ProcessLookupError):
                os.kill(process.process, signal.SIGKILL)


def _settled(session: Session) -> int:
    """Have the outstanding samples handed out again, and return how many samples this rank's state has been trained on;
    NONE if its state is not that of the whole training."""
    state, outstanding = session.state, session.outstanding
    if outstanding is None:
        return NONE
    for work in outstanding():
        state.queue.give_back(work)
    state.queue.rewind()
    session.outstanding = list  # nothing more
    state.trained = state.queue.position - sum(work.count for work in state.queue.returned)
    return state.trained
