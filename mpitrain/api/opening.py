"""Open the run folder: its documents and its monitor, and on a resume the checkpoint."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from mpitrain import __version__, checkpoint
from mpitrain import config as configuration
from mpitrain.algorithms import Algorithm, maker_of, name_of
from mpitrain.api import warnings
from mpitrain.api.requirements import require_fallback
from mpitrain.checkpoint.late import CopyWriter, Moment
from mpitrain.checkpoint.lease import Lease
from mpitrain.checkpoint.writer import Saver
from mpitrain.config import Config
from mpitrain.data import origin
from mpitrain.errors import BadInput, some
from mpitrain.files import Record, write_below
from mpitrain.monitoring import tensorboard
from mpitrain.monitoring.cadence import Cadence
from mpitrain.monitoring.evaluation import Evaluation, Measuring, random_subset
from mpitrain.monitoring.evaluations import Evaluations
from mpitrain.monitoring.journal import FolderJournal, Progress
from mpitrain.monitoring.monitor import MasterMonitor
from mpitrain.monitoring.records import Callback, Metrics, records_of
from mpitrain.mpi import library
from mpitrain.protocols.standby import idle_ranks
from mpitrain.sampling.batch import Samples
from mpitrain.sampling.queue import Queue
from mpitrain.start import rank_of
from mpitrain.training.context import Session, fresh
from mpitrain.training.parts import DataSource, Part, held_out, trained_on


def open_run_folder(
    session: Session, source: DataSource, lease: Lease | None, resumed: Path | None, callback: Callback | None
) -> MasterMonitor | None:
    """Rank 0's monitor, which evaluates on the source's held-out parts and calls `callback` with each record; None if
    there is no `lease`. On a resume, load the checkpoint. Bad input leaves the folder unchanged."""
    if lease is None:
        return None
    config, folder = session.config, lease.folder
    require_fallback(config)
    progress = Progress(config.run.progress, session.schedule.total)
    session.resumed = resumed
    told, corpora = _read(session, source, folder)
    documents = {checkpoint.CONFIG: checkpoint.sealed(configuration.to_toml(config)), origin.NAME: origin.text(told)}
    documents |= session.documents
    if not session.device.phantom:
        session.saver = _saver(session, folder, documents)
    before = next(records_of(folder / "metrics.jsonl", "start"), None) if resumed is not None else None
    # nothing is written until all user input has been read
    if not resumed:
        for name, text in documents.items():
            write_below(folder, name, text)
    events = tensorboard.EventFile(folder, session.state.trained) if config.run.tensorboard else None
    metrics = Metrics(folder / "metrics.jsonl", events, progress.line, callback)
    if config.run.train_subset and not session.device.phantom:
        corpora["train-subset"] = random_subset(session.learner.corpus, config.run.train_subset, config.training.seed)
    journal = FolderJournal(
        folder, lease.find, metrics, progress, session.state.queue.samples, session.stop, session.bytes_exchanged
    )
    monitor = _monitor(session, journal, corpora)
    session.journal, session.monitor = journal, monitor
    _say_start(session, resumed is not None)
    for line in _warnings(session, folder, told, corpora, before):
        journal.warn(line)
    return monitor


def _read(session: Session, source: DataSource, folder: Path) -> tuple[origin.Origin, dict[str, Samples]]:
    """Load the checkpoint to resume from into the session; return the data's origin, and the held-out parts."""
    config, resumed, earlier = session.config, session.resumed, None
    if resumed is not None:
        earlier = origin.read(resumed) or origin.read(folder)
    told = trained_on(config, source, earlier)
    if resumed is not None:
        _load(session, resumed)
    parts = [] if session.device.phantom else held_out(source.parts())
    threads = session.transport.threads(config.run.threads)
    return told, {part: source.opened(part, told, threads=threads) for part in parts}


def _monitor(session: Session, journal: FolderJournal, corpora: dict[str, Samples]) -> MasterMonitor:
    run, counters, transport = session.config.run, session.counters, session.transport
    cadence = Cadence(run.evaluate_every, run.checkpoint_every, run.checkpoint_samples, session.clock, journal.samples)

    def now(loss: float | None) -> Moment:
        state = session.state
        rate = state.rate(session.schedule.at(state.trained).learning_rate)
        return Moment(state.trained, state.index, cadence.seconds, loss, rate)

    of_saves = (lambda: session.saver), transport.stopwatch, session.witness, session.command_to_resume
    monitor = MasterMonitor(cadence, counters, journal, *of_saves, now)
    if corpora:
        monitor.evaluations = Evaluations(
            *(_evaluation(session, corpora), journal, cadence, counters, transport, session.stop, now),
            copies=CopyWriter(session.network.layout) if run.evaluate_late else None,
            offer_best=partial(monitor.offer_best, of=_compared_on(corpora)) if run.checkpoint_best else None,
        )
    return monitor


def _compared_on(corpora: dict[str, Samples]) -> str:
    """The part on which models are compared, with what tells other data apart: a resume may bring others."""
    part = "dev" if "dev" in corpora else "test"
    corpus = corpora.get(part)
    return f"{part} {corpus.identity()}" if isinstance(corpus, Part) else ""


def _warnings(
    session: Session, folder: Path, told: origin.Origin, corpora: dict[str, Samples], before: Record | None
) -> Iterator[str]:
    """What to warn of at the start; `before`: the record of the start of the run that is resumed."""
    yield from warnings.of_keys(session)
    yield from warnings.of_network(session.network)
    if not session.device.phantom:
        yield from warnings.of_normalising(session.config.data.normalise, told, session.resumed is not None)
        yield from warnings.of_data(session.schedule, told.class_counts, corpora)
    yield from warnings.of_resume(session, before)
    yield from warnings.of_room(session, folder)


def _saver(session: Session, folder: Path, documents: dict[str, str]) -> Saver:
    """A saver that writes checkpoints into a run folder, with these documents in each."""
    run, network = session.config.run, session.network
    keep, where = run.checkpoints_kept, folder / "checkpoints"
    return Saver(where, network.layout, keep, run.deadline, session.transport, documents, network.kept)


def _evaluation(session: Session, corpora: dict[str, Samples]) -> Evaluation:
    """The evaluation on these parts, which first measures the statistics of normalisation of a model that has any."""
    device, training, network = session.device, session.config.training, session.network
    dtype, measuring = np.dtype(training.dtype), None
    if network.measures:
        measuring = Measuring(network, session.learner.corpus, training.seed, dtype, device)
    slices, pace = session.has_master, session.transport.runtime.pace.evaluation
    return Evaluation(network, corpora, dtype, session.clock, slices, device=device, measuring=measuring, pace=pace)


def _say_start(session: Session, resume: bool) -> None:
    config, transport, journal = session.config, session.transport, session.journal
    ranks, workers = transport.size, session.workers
    server = "a server and " if session.has_master else ""
    idle = f", {len(idle_ranks(session))} idle" if idle_ranks(session) else ""
    if session.team is not None:
        sizes = sorted({len(team) for team in session.team.all[session.has_master :]})
        idle = f", each a team of {' or '.join(map(str, sizes))} rank{'s' * (sizes[-1] > 1)}"
    journal.progress.line(
        f"mpitrain {__version__}: {name_of(config.algorithm)} on {some(ranks, 'rank')} "
        f"({server}{some(workers, 'worker')}{idle}), {some(transport.nodes, 'node')}, "
        f"{some(transport.threads(config.run.threads), 'thread')} a rank, {session.device}"
        + (f" ({session.device.why})" if session.device.why else "")
    )
    journal.progress.line(
        f"{config.data.import_ or config.data.path or 'embedded digits'}: {session.learner.corpus.samples:,} samples"
        + (f", {session.network.classes} classes" if session.network.classes else "")
        + f"; {config.model.preset or session.network.name}: "
        f"{session.network.layout.size:,} parameters"
        + (f"; resumed at epoch {session.state.trained / session.learner.corpus.samples:.2f}" if resume else "")
    )
    wants_more = session.config.algorithm.has_master or session.config.algorithm.workers(2) > 1
    if ranks == 1 and wants_more and not transport.runtime.simulated and rank_of(os.environ, -1) < 0:
        journal.progress.line("1 rank: did you mean mpirun -n 4 python -m mpitrain …?")
    place = {"samples": session.state.trained, "seconds": session.state.seconds}  # where a resumed run goes on
    who = {"algorithm": name_of(config.algorithm), "ranks": ranks, "workers": workers}
    journal.write("start", **who, mpi=library(), resumed=resume, version=__version__, **place)


def _load(session: Session, resumed: Path) -> None:
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
