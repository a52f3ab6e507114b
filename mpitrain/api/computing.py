"""Choose how to compute the network if `model.backend` or `run.matmul` is `"auto"`: one way for all ranks."""

from collections.abc import Mapping
from importlib.util import find_spec

import msgspec

from mpitrain.algorithms import name_of
from mpitrain.api.options import TrainOptions
from mpitrain.config import CHOSEN, Config
from mpitrain.device import available
from mpitrain.errors import say, some
from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import agreed
from mpitrain.training.context import teams_of
from mpitrain.training.parts import DataSource, form_of, source_of
from mpitrain.training.step_times import StepTimes, Way, keep, key_of, path_of, read, slowest, steps, timed, ways
from mpitrain.training.user_code import Code

WHAT = "the step times"


def chosen(
    transport: Transport, config: Config, options: TrainOptions, code: Mapping[str, Code]
) -> tuple[Config, DataSource | None]:
    """The configuration with the values that are best for the slowest rank in place of `"auto"`, and the data if they
    had to be opened. The first rank prints the choice. Collective; raises BadInput."""
    auto = [key for key, it in zip(CHOSEN, (config.model.backend, config.run.matmul), strict=True) if it == "auto"]
    if not auto:
        return config, None
    of, source = ways(config), None
    way, why = of[0], _untimed(transport, config, of)
    if not why:
        source = agreed(transport, lambda: source_of(config, code), WHAT)
        found, before = _times(transport, config, options, code, of, source)
        times = slowest(found)
        way, shortest = of[times.fastest], times.seconds[times.fastest]
        others = [f"{each} {s / shortest:.2f}" for each, s in zip(of, times.seconds, strict=True) if each != way]
        why = f"{1e3 * shortest:,.2f} ms for {some(times.samples, 'sample')}, {' and '.join(others)} times as long; "
        why += some(transport.threads(config.run.threads), "thread") + " a rank"
        why += f", the slowest of {len(found)}" * (len(found) > 1) + f" ({path_of(found[0].of)})" * before
    if transport.rank == 0 and config.run.progress != "none":
        say(f"{' and '.join(auto)} = 'auto': {way}, {why}")
    return way.of(config), source


def _untimed(transport: Transport, config: Config, of: list[Way]) -> str:
    """Why no steps are timed, so that the simplest way is taken; "" if steps are timed. Collective."""
    method, apart = config.pretraining.method, "layers apart, which PyTorch computes together"
    for holds, why in (
        (transport.runtime.simulated, "since the cluster's file says how long simulated ranks take"),
        (config.algorithm.divides, f"since {name_of(config.algorithm)} takes {apart}"),
        (method != "none", f"since pretraining.method = {method!r} takes {apart}"),
        (len(of) == 1, "which multiplies in the dtype of the parameters"),
    ):
        if holds:
            return why
    lacks = "" if find_spec("torch") else "has no PyTorch (the extra mpitrain[torch])"
    if config.run.device != "cpu" and available():
        lacks = "has a GPU, where no steps are timed"
    texts = transport.gather_texts(lacks, WHAT)
    return next((f"since rank {rank} {text}" for rank, text in enumerate(texts) if text), "")


def _times(
    transport: Transport,
    config: Config,
    options: TrainOptions,
    code: Mapping[str, Code],
    of: list[Way],
    source: DataSource,
) -> tuple[list[StepTimes], bool]:
    """The step times of the ranks that will compute gradients, and whether all were kept from before. If not, these
    ranks measure at the same time, as they will compute in the training. Collective."""
    algorithm, threads = config.algorithm, transport.threads(config.run.threads)
    shared = algorithm.samples_of_gradient(config.training.minibatch, transport.size)
    team = max(map(len, agreed(transport, lambda: teams_of(config, transport), WHAT)))  # whose ranks share a minibatch
    samples = max(1, shared // team // config.training.accumulate)
    computes = transport.rank > 0 or transport.size == 1 or not algorithm.has_master
    known = agreed(transport, source.origin, WHAT)
    form, classes = form_of(config, known), known.classes
    key = key_of(config, of, code, form, classes, samples, threads, transport.local_size)
    before = _gathered(transport, read(key, len(of), transport.leader) if key else None, computes)
    if None not in before.values():
        return [each for each in before.values() if each], True
    every = agreed(
        transport, lambda: steps(config, of, form, classes, threads, code, options.build) if computes else [], WHAT
    )
    transport.barrier(WHAT)
    mine = agreed(transport, lambda: timed(key, every, samples) if computes else None, WHAT)
    found = {rank: each for rank, each in _gathered(transport, mine, computes).items() if each}
    alike = {rank: each for rank, each in found.items() if key and each.of == key}
    if transport.rank == min(alike, default=None):
        keep(slowest([*alike.values()]))
    return [*found.values()], False


def _gathered(transport: Transport, mine: StepTimes | None, computes: bool) -> dict[int, StepTimes | None]:
    """The times of each rank that computes, None where it has none. Collective."""
    texts = transport.gather_texts(msgspec.json.encode(mine).decode() if computes else "", WHAT)
    return {rank: msgspec.json.decode(text, type=StepTimes | None) for rank, text in enumerate(texts) if text}
