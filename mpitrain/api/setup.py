"""Set up a training: build or read all that depends on the user's files and keys, then make each rank's session."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from mpitrain.algorithms import name_of
from mpitrain.api.options import TrainOptions
from mpitrain.api.requirements import require_keys, require_memory, require_same_data, require_whole_samples
from mpitrain.api.shared import shared_statistics
from mpitrain.config import Config
from mpitrain.data.sharing import ALONE, Sharing
from mpitrain.data.validation import Attributes
from mpitrain.device import CPU, Cpu, agree, choose
from mpitrain.device.phantom import Phantoms
from mpitrain.errors import BadInput, library, say
from mpitrain.flat import Array
from mpitrain.models.model import Model, PhantomModel
from mpitrain.models.network import network_of_layers
from mpitrain.models.partition import stages
from mpitrain.models.torch import start as torch_start
from mpitrain.monitoring import trace
from mpitrain.monitoring.counters import RankFigures
from mpitrain.mpi import Transport, cuda_aware
from mpitrain.mpi.agreement import agreed
from mpitrain.mpi.node_memory import NodeMemory
from mpitrain.mpi.team import Team
from mpitrain.mpi.witness import Witness
from mpitrain.protocols.team import Leading
from mpitrain.sampling.queue import Queue
from mpitrain.signals import Stop
from mpitrain.training import pretraining
from mpitrain.training.context import Session, fresh, teams_of, workers_of
from mpitrain.training.gradients import Learner, orders_of
from mpitrain.training.inputs import network_of
from mpitrain.training.parts import DataSource, Part, source_of
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

    hold = partial(prepared.corpus.hold, sharing, partly)
    agreed(transport, lambda: transport.runtime.once("the samples", hold), "the data", calls_mpi=sharing is not ALONE)
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


def _device(transport: Transport, config: Config, options: TrainOptions) -> Cpu:
    """Where this rank computes."""
    if options.phantom:
        device = Phantoms(transport.runtime.pace, options.density or config.algorithm.density or DENSITY)
        if config.algorithm.sparse and not (options.density or config.algorithm.density):
            device.why = f"of each gradient {DENSITY:.1%} is sent, as --density is not given"
        return device
    if transport.runtime.simulated:
        return CPU.observed(transport.runtime.pace.around)
    of_torch = "model.import" if config.model.import_ else "model.backend = 'torch'"
    unfit = partial(torch_start.without_cuda, of_torch) if config.by_torch else lambda: ""
    return choose(config.run.device, config.run.matmul, transport.local_rank, unfit=unfit)


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
    device, threads = _device(transport, config, options), transport.threads(config.run.threads)

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
        library("tensorboardX", "run.tensorboard needs tensorboardX", "tensorboard")
    if device.phantom:
        phantom = partial(PhantomModel, network, corpus.form, config.training.dtype)
        network = transport.runtime.once("the network", phantom)
    return Prepared(device, source, corpus, network)


def new_session(
    transport: Transport, config: Config, prepared: Prepared, stop: Stop, witness: Witness | None
) -> Session:
    """This rank's session, with the initial weights. Collective."""
    device, source, corpus, network, _ = prepared
    agree(device, transport, *cuda_aware(config.run.cuda_aware))
    if config.run.trace:
        prepared = prepared._replace(device=trace.observed(device, transport.stopwatch))
    schedule = config.schedule(corpus.samples, transport.size).among(workers_of(config, transport))
    with transport.working():
        initial = _initial(transport, config, network, device)
        state = fresh(config.algorithm, initial, Queue(corpus.samples, schedule.total))
    teams, figures = teams_of(config, transport), RankFigures()
    team = None if config.run.team == 1 else _team(transport, config, prepared, teams)
    alone = config.algorithm.workers(transport.size) == 1 and not config.algorithm.has_master
    session = Session(
        config,
        transport,
        [ranks[0] for ranks in (teams[:1] if alone else teams)],
        network,
        _learner(transport, config, prepared, team, figures),
        schedule,
        state,
        transport.clock if witness is None else lambda: witness.clock(transport.clock()),
        stop,
        device=prepared.device,
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


def _team(transport: Transport, config: Config, prepared: Prepared, teams: list[list[int]]) -> Team:
    """This rank's team, whose ranks share memory if they compute on CPUs. Collective."""
    team = Team(transport, teams)
    if not transport.runtime.simulated:
        devices = transport.gather_texts(prepared.device.name, "the devices")
        if set(devices) == {"cpu"}:
            team.share(prepared.network.layout.size, np.dtype(config.training.dtype))
    return team


def _learner(
    transport: Transport, config: Config, prepared: Prepared, team: Team | None, figures: RankFigures
) -> Learner:
    training, corpus, runtime = config.training, prepared.corpus, transport.runtime
    drawn = partial(orders_of, training.seed, corpus.samples, config.algorithm.chunked, prepared.sharing)
    orders = runtime.once("the order of the samples", drawn)
    make = partial(Leading, team) if team is not None and team.leads else Learner
    return make(
        prepared.network,
        corpus,
        training,
        independent=config.algorithm.independent,
        orders=orders,
        device=prepared.device,
        deadline=config.run.deadline,
        pace=runtime.pace.gradient if runtime.simulated else None,
        stopwatch=transport.stopwatch,
        figures=figures if config.run.gradient_statistics else None,
    )
