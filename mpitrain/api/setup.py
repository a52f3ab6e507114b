"""Set up a training: data, network, run folder and session; on a resume, restore the checkpoint."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpitrain import __version__, checkpoint
from mpitrain import config as configuration
from mpitrain.algorithms import name_of
from mpitrain.api import resuming, warnings
from mpitrain.api.options import TrainOptions
from mpitrain.api.requirements import (
    require_fallback,
    require_keys,
    require_memory,
    require_same_data,
    require_whole_samples,
)
from mpitrain.api.shared import shared_statistics
from mpitrain.checkpoint.late import CopyWriter
from mpitrain.checkpoint.lease import Lease
from mpitrain.checkpoint.writer import Saver
from mpitrain.config import Config
from mpitrain.data import origin
from mpitrain.data.sharing import ALONE, Sharing
from mpitrain.data.validation import Attributes
from mpitrain.device import CPU, Cpu, agree, choose
from mpitrain.device.phantom import Phantoms
from mpitrain.errors import BadInput, say, some
from mpitrain.files import Record, write_below
from mpitrain.flat import Array
from mpitrain.models.model import Model
from mpitrain.models.network import network_of_layers
from mpitrain.models.partition import stages
from mpitrain.models.phantom import PhantomModel
from mpitrain.models.torch import start as torch_start
from mpitrain.monitoring import tensorboard, trace
from mpitrain.monitoring.cadence import Cadence
from mpitrain.monitoring.evaluation import Evaluation, Measuring, random_subset
from mpitrain.monitoring.figures import RankFigures
from mpitrain.monitoring.monitor import MasterMonitor
from mpitrain.monitoring.progress import Progress
from mpitrain.monitoring.records import Metrics, records_of
from mpitrain.mpi import Transport, cuda_aware, library
from mpitrain.mpi.agreement import agreed
from mpitrain.mpi.node_memory import NodeMemory
from mpitrain.mpi.team import Team
from mpitrain.mpi.witness import Witness
from mpitrain.protocols.standby import idle_ranks
from mpitrain.protocols.team import Leading
from mpitrain.sampling.batch import Samples
from mpitrain.sampling.queue import Queue
from mpitrain.signals import Stop
from mpitrain.start import rank_of
from mpitrain.training import pretraining
from mpitrain.training.context import Session, fresh, teams_of, workers_of
from mpitrain.training.gradients import Learner, orders_of
from mpitrain.training.inputs import network_of
from mpitrain.training.parts import DataSource, Part, held_out, source_of, trained_on
from mpitrain.training.user_code import Code

DENSITY = 0.002  # the fraction of each gradient that a phantom sends; for real trainings' see docs/simulate.md


class Prepared(NamedTuple):
    """What a training is set up from: `corpus` is the training part of `source`."""

    device: Cpu
    source: DataSource
    corpus: Part
    network: Model
    sharing: Sharing = ALONE  #: the ranks that share this rank's data


def prepare(
    transport: Transport, config: Config, options: TrainOptions, code: Mapping[str, Code], source: DataSource | None
) -> Prepared:
    """Build everything that depends on the user's files and keys, and read the training part, of which the ranks of a
    node share one copy if they can. Collective; raises BadInput."""
    known = shared_statistics(transport, options)
    prepared = agreed(transport, lambda: _built(transport, config, options, code, source, known), "the preparation")
    agreed(transport, lambda: require_same_data(transport, config, prepared.corpus), "the data", calls_mpi=True)
    sharing = _sharing(transport, config)
    one_copy = sharing is not ALONE or transport.local_size == 1  # whether this rank's node has a single copy
    partly = one_copy and config.data.memory_limit_gb is None and not transport.runtime.simulated

    def hold() -> None:
        transport.runtime.once("the samples", lambda: prepared.corpus.hold(sharing, partly))

    agreed(transport, hold, "the data", calls_mpi=sharing is not ALONE)
    return prepared._replace(sharing=sharing)


def _sharing(transport: Transport, config: Config) -> Sharing:
    """The ranks with which this rank shares its data: those of its node, unless each has its own copy. Collective."""
    lone = transport.nodes == transport.size or transport.runtime.simulated
    if lone or config.data.memory_limit_gb is not None:
        return ALONE
    try:
        return NodeMemory(transport)
    except BadInput as error:
        if error.spoken_here and config.run.progress != "none":
            say(f"each rank has a copy of the data, since the ranks of a node do not share memory: {error}")
        return ALONE


def _built(
    transport: Transport,
    config: Config,
    options: TrainOptions,
    code: Mapping[str, Code],
    source: DataSource | None,
    known: Attributes | None,
) -> Prepared:
    """Build everything that depends on the user's files and keys and needs no communication. `code` builds network and
    data, unless the data are already open as `source`. The training part is normalised by the statistics `known`, or
    else by its own."""
    require_keys(transport, config, options)
    if options.phantom:
        device: Cpu = Phantoms(transport.runtime.pace, options.density or config.algorithm.density or DENSITY)
        if config.algorithm.sparse and not (options.density or config.algorithm.density):
            device.why = f"of each gradient {DENSITY:.1%} is sent, as --density is not given"
    elif transport.runtime.simulated:
        device = CPU.observed(transport.runtime.pace.around)
    else:
        of_torch = "model.import" if config.model.import_ else "model.backend = 'torch'"
        unfit = partial(torch_start.without_cuda, of_torch) if config.by_torch else lambda: ""
        device = choose(config.run.device, config.run.matmul, transport.local_rank, unfit=unfit)
    threads = transport.threads(config.run.threads)

    def opened() -> tuple[DataSource, Part]:
        found = source or source_of(config, code)
        unread = {"memory_limit": 0, "normalise": "none"} if device.phantom else {}  # a phantom reads no samples
        return found, found.training(threads=threads, statistics=known, **unread)

    source, corpus = transport.runtime.once("the training part", opened)
    torch_start.limit_threads(threads)
    network = network_of(config, corpus.form, corpus.classes, device, code, options.build)
    torch_start.limit_threads(threads)
    if options.scale is not None:
        transport.runtime.pace.scale, transport.runtime.pace.said = options.scale(network)
    require_whole_samples(config, corpus.samples)
    if transport.rank == 0 or not transport.runtime.simulated:
        require_memory(config, network, corpus, 0 if device.phantom else transport.runtime.simulated)
    schedule, there = config.schedule(corpus.samples, transport.size), workers_of(config, transport)
    wanted = schedule.most_workers
    config.algorithm.check_steps(schedule.steps(there))
    if wanted > there and not options.least_ranks:  # after a loss, the ranks that are left train all stages
        raise BadInput(f"stages: a stage asks for {wanted} workers, these {transport.size} ranks have {there}")
    if config.algorithm.divides:
        stages(network_of_layers(network, "split", name_of(config.algorithm)), transport.size)
    pretraining.require_fit(config.pretraining, network)
    if config.run.tensorboard:
        tensorboard.require()
    if device.phantom:
        network = transport.runtime.once(
            "the network", lambda: PhantomModel(network, corpus.form, config.training.dtype)
        )
    return Prepared(device, source, corpus, network)


def new_session(
    transport: Transport, config: Config, prepared: Prepared, stop: Stop, witness: Witness | None
) -> Session:
    """This rank's session, with the initial weights. Collective."""
    device, source, corpus, network, sharing = prepared
    agree(device, transport, *cuda_aware(config.run.cuda_aware))
    if config.run.trace:
        device = trace.observed(device, transport.stopwatch)
    training = config.training
    schedule = config.schedule(corpus.samples, transport.size).among(workers_of(config, transport))
    with transport.working():
        initial = _initial(transport, config, network, device)
        state = fresh(config.algorithm, initial, Queue(corpus.samples, schedule.total))
    teams, team = teams_of(config, transport), None
    if config.run.team != 1:
        team = Team(transport, teams)
        if not transport.runtime.simulated and set(transport.gather_texts(device.name, "the devices")) == {"cpu"}:
            team.share(network.layout.size, np.dtype(training.dtype))
    orders = transport.runtime.once(
        "the order of the samples",
        lambda: orders_of(training.seed, corpus.samples, config.algorithm.chunked, sharing),
    )
    figures = RankFigures()
    make = partial(Leading, team) if team is not None and team.leads else Learner
    learner = make(
        network,
        corpus,
        training,
        independent=config.algorithm.independent,
        orders=orders,
        device=device,
        deadline=config.run.deadline,
        pace=transport.runtime.pace.gradient if transport.runtime.simulated else None,
        stopwatch=transport.stopwatch,
        figures=figures if config.run.gradient_statistics else None,
    )
    alone = config.algorithm.workers(transport.size) == 1 and not config.algorithm.has_master
    members = [ranks[0] for ranks in (teams[:1] if alone else teams)]
    clock = transport.clock if witness is None else lambda: witness.clock(transport.clock())
    session = Session(
        config,
        transport,
        members,
        network,
        learner,
        schedule,
        state,
        clock,
        stop,
        device=device,
        team=team,
        figures=figures,
        witness=witness or Witness(),
        documents={**network.documents, **source.documents},
    )
    session.counters.measures = not device.phantom
    return session


def _initial(transport: Transport, config: Config, network: Model, device: Cpu) -> Array:
    """The initial weights. Simulated ranks compute them once, and each gets a copy."""
    dtype = np.dtype(config.training.dtype)
    if device.phantom:
        return device.host_zeros(network.layout.size, dtype)
    theta = transport.runtime.once("the initial weights", lambda: network.initial(config.initial_seed, dtype))
    return theta.copy() if transport.runtime.simulated else theta


def open_run_folder(
    session: Session,
    source: DataSource,
    lease: Lease | None,
    resumed: Path | None,
    callback: Callable[[Record], object] | None,
) -> MasterMonitor | None:
    """Rank 0's monitor, which evaluates on the source's held-out parts and calls `callback` with each record; None if
    there is no `lease`. On a resume, load the checkpoint. Bad input leaves the folder unchanged."""
    if lease is None:
        return None
    config, state, transport, folder = session.config, session.state, session.transport, lease.folder
    require_fallback(config)
    progress = Progress(config.run.progress, session.schedule.total)
    session.resumed = resumed
    told, corpora = _read(session, source, folder)
    documents = {
        checkpoint.CONFIG: checkpoint.sealed(configuration.to_toml(config)),
        origin.NAME: origin.text(told),
        **session.documents,
    }
    if not session.device.phantom:
        session.saver = _saver(session, folder, documents)
    before = next(records_of(folder / "metrics.jsonl", "start"), None) if resumed is not None else None
    # nothing is written until all user input has been read
    if not resumed:
        for name, text in documents.items():
            write_below(folder, name, text)
    events = tensorboard.EventFile(folder, state.trained) if config.run.tensorboard else None
    metrics = Metrics(folder / "metrics.jsonl", events, progress.line, callback)
    if config.run.train_subset and not session.device.phantom:
        corpora["train-subset"] = random_subset(session.learner.corpus, config.run.train_subset, config.training.seed)
    run = config.run
    session.monitor = monitor = MasterMonitor(
        Cadence(run.evaluate_every, run.checkpoint_every, run.checkpoint_samples, session.clock, state.queue.samples),
        session.counters,
        transport,
        folder,
        lease.find,
        metrics,
        progress,
        evaluation=_evaluation(session, corpora) if corpora else None,
        late=CopyWriter(session.network.layout) if run.evaluate_late else None,
        stop=session.stop,
        exchanged=session.bytes_exchanged,
        resume=session.command_to_resume,
        rate_at=lambda samples: state.rate(session.schedule.at(samples).learning_rate),
        saves_best=run.checkpoint_best,
        saver=session.saver,
        witness=session.witness,
    )
    _say_start(session, resumed is not None)
    of_data: list[str] = []
    if not session.device.phantom:
        of_data += warnings.of_normalising(config.data.normalise, told, resumed is not None)
        of_data += warnings.of_data(session.schedule, told.class_counts, corpora)
    of_resume, of_room = warnings.of_resume(session, before), warnings.of_room(session, folder)
    for line in (*warnings.of_keys(session), *of_data, *of_resume, *of_room):
        monitor.warn(line)
    return monitor


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


def _read(session: Session, source: DataSource, folder: Path) -> tuple[origin.Origin, dict[str, Samples]]:
    """Load the checkpoint to resume from into the session; return the data's origin, and the held-out parts."""
    config, resumed, earlier = session.config, session.resumed, None
    if resumed is not None:
        earlier = origin.read(resumed) or origin.read(folder)
    told = trained_on(config, source, earlier)
    if resumed is not None:
        resuming.load(session, resumed)
    parts = [] if session.device.phantom else held_out(source.parts())
    threads = session.transport.threads(config.run.threads)
    return told, {part: source.opened(part, told, threads=threads) for part in parts}


def _say_start(session: Session, resume: bool) -> None:
    config, transport, monitor = session.config, session.transport, session.monitor
    ranks, workers = transport.size, session.workers
    server = "a server and " if session.has_master else ""
    idle = f", {len(idle_ranks(session))} idle" if idle_ranks(session) else ""
    if session.team is not None:
        sizes = sorted({len(team) for team in session.team.all[session.has_master :]})
        idle = f", each a team of {' or '.join(map(str, sizes))} rank{'s' * (sizes[-1] > 1)}"
    monitor.progress.line(
        f"mpitrain {__version__}: {name_of(config.algorithm)} on {some(ranks, 'rank')} "
        f"({server}{some(workers, 'worker')}{idle}), {some(transport.nodes, 'node')}, "
        f"{some(transport.threads(config.run.threads), 'thread')} a rank, {session.device}"
        + (f" ({session.device.why})" if session.device.why else "")
    )
    monitor.progress.line(
        f"{config.data.import_ or config.data.path or 'embedded digits'}: {session.learner.corpus.samples:,} samples"
        + (f", {session.network.classes} classes" if session.network.classes else "")
        + f"; {config.model.preset or session.network.name}: "
        f"{session.network.layout.size:,} parameters"
        + (f"; resumed at epoch {session.state.trained / session.learner.corpus.samples:.2f}" if resume else "")
    )
    wants_more = session.config.algorithm.has_master or session.config.algorithm.workers(2) > 1
    if ranks == 1 and wants_more and not transport.runtime.simulated and rank_of(os.environ, -1) < 0:
        monitor.progress.line("1 rank: did you mean mpirun -n 4 python -m mpitrain …?")
    place = {"samples": session.state.trained, "seconds": session.state.seconds}  # where a resumed run goes on
    who = {"algorithm": name_of(config.algorithm), "ranks": ranks, "workers": workers}
    monitor.write("start", **who, mpi=library(), resumed=resume, version=__version__, **place)
