"""Set up a training: build or read all that depends on the user's files and keys."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from mpitrain.algorithms import name_of
from mpitrain.api.options import TrainOptions
from mpitrain.api.requirements import (
    require_keys,
    require_memory,
    require_same_data,
    require_whole_samples,
)
from mpitrain.api.shared import shared_statistics
from mpitrain.config import Config
from mpitrain.data.sharing import ALONE, Sharing
from mpitrain.data.validation import Attributes
from mpitrain.device import CPU, Cpu, choose
from mpitrain.device.phantom import Phantoms
from mpitrain.errors import BadInput, say
from mpitrain.models.model import Model, PhantomModel
from mpitrain.models.network import network_of_layers
from mpitrain.models.partition import stages
from mpitrain.models.torch import start as torch_start
from mpitrain.monitoring import tensorboard
from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import agreed
from mpitrain.mpi.node_memory import NodeMemory
from mpitrain.training import pretraining
from mpitrain.training.context import workers_of
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
        tensorboard.require()
    if device.phantom:
        network = transport.runtime.once(
            "the network", lambda: PhantomModel(network, corpus.form, config.training.dtype)
        )
    return Prepared(device, source, corpus, network)
