"""`mpitrain calibrate`: write, by measuring, the file that describes this machine and a network to `simulate`."""

import argparse
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import tomli_w
from threadpoolctl import threadpool_limits

from mpitrain.algorithms.optimizers.sgd import classical
from mpitrain.api.computing import chosen
from mpitrain.api.options import TrainOptions
from mpitrain.api.setup import prepare
from mpitrain.api.shared import shared_code, shared_config
from mpitrain.compression.message import WireForm
from mpitrain.compression.residual import Entries
from mpitrain.config import Config
from mpitrain.device import CPU
from mpitrain.errors import BadInput, say, some
from mpitrain.files import write_whole
from mpitrain.flat import Array, block_slices, scratch_for
from mpitrain.models.model import Model
from mpitrain.monitoring.evaluation import TOGETHER
from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import agreed, by_all_ranks
from mpitrain.mpi.links import USUAL, Link, link, pairs
from mpitrain.sampling.queue import Work
from mpitrain.sampling.stages import Training
from mpitrain.simulation.cluster import MeasuredNetwork
from mpitrain.training.gradients import Learner
from mpitrain.training.parts import Part

T = TypeVar("T")
SECONDS = 60.0  # for which gradients are measured, at most
SIZES, LEAST, MOST = (0.25, 0.5, 1.0), 5, 100  # of training.minibatch; how often each is measured
SHORT = 5.0  # seconds for which updates, copies and evaluations are each measured, at most
QUANTILES = 21
CACHES = 1 << 26  # bytes of vectors that are used in turns: in a training a gradient comes between two uses of one
ABOVE = 2.576  # the magnitude that a hundredth of standard normal numbers exceed
SPREAD = 3.0  # times the line's seconds: the slowest gradient that a quiet machine is believed to have
LATENCY = 3e-5  # seconds between nodes where --bandwidth says what is not there: of Ethernet


def calibrate(options: argparse.Namespace) -> int:
    """Write the file. Collective; the exit status."""
    return by_all_ranks(lambda transport: _calibrate(transport, options))


def _calibrate(transport: Transport, given: argparse.Namespace) -> int:
    path: Path = given.cluster
    bandwidth = agreed(transport, lambda: _wanted(given, transport.rank == 0), "the options")
    options = TrainOptions(given.config, tuple(given.set))
    config = shared_config(transport, options)
    code = shared_code(transport, config, options)
    config, source = chosen(transport, config, options, code)
    prepared = prepare(transport, config, options, code, source)
    corpus, network = prepared.corpus, prepared.network
    cores = min(map(int, transport.gather_texts(str(transport.node_cores), "the nodes' cores")))
    number = transport.threads(config.run.threads)
    load = max(map(float, transport.gather_texts(f"{os.getloadavg()[0]:.1f}", "the nodes' loads")))
    together = max(1, cores // number)
    with threadpool_limits(number):
        gradients = _of_all(transport, together, lambda: _gradients(config, corpus, network), "the others' gradients")
        work = _of_all(transport, together, lambda: _work(config, corpus, network), "the others' updates")
    samples, seconds = np.concatenate(gradients).T
    start, slope = line(samples, seconds)
    factors = spread(samples, seconds, start, slope)
    within, between = (link(transport, pair) for pair in pairs(transport.node_leaders))
    told = Link(between.latency if between else LATENCY, bandwidth) if bandwidth else between
    inside = within or (USUAL if bandwidth else None)
    own = MeasuredNetwork(network.name, network.layout.size, network.multiply_adds)
    content = {
        "nodes": given.nodes or transport.nodes,
        "ranks_per_node": max(Counter(transport.node_leaders).values()),
        "cores_per_node": together,
        "gradient": {"seconds": _short(start), "seconds_per_sample": _short(slope), "spread": factors},
        **{
            kind: {key: _short(np.mean([each[kind][key] for each in work])) for key in work[0][kind]}
            for kind in work[0]
        },
        "within_node": _connection(inside or told or USUAL),
        "between_nodes": _connection(told or inside or USUAL),
        "network": msgspec.to_builtins(own),
    }
    notes = [
        f"Gradients in {config.training.dtype}, products in {config.run.matmul}, {some(number, 'thread')} a rank.",
        *_unmeasured(given, within, between),
    ]
    busy = list(doubts(factors, load, cores))
    lists = re.sub(r"\[\n[^\]]*\]", lambda found: f"[{' '.join(found[0][1:-1].split())[:-1]}]", tomli_w.dumps(content))
    text = "".join(f"# {line}\n" for line in [*notes, *busy]) + lists
    agreed(transport, lambda: None if transport.rank else write_whole(path, text), "the file")
    if transport.rank == 0:
        print(text, end="")
        for warning in busy:
            say(f"warning: {warning}")
    return 0


def _unmeasured(given: argparse.Namespace, within: Link | None, between: Link | None) -> Iterator[str]:
    """What the file says that was not measured."""
    latency = "measured" if between else "assumed"
    inside = "copied" if between and not given.bandwidth else "assumed"
    outside = "copied" if within else "assumed"
    for lacks, line in (
        (given.nodes, "As many nodes as --nodes says, not as there were."),
        (given.bandwidth, f"Between nodes the bandwidth of --bandwidth, the latency {latency}."),
        (not within, f"One rank a node: the link within a node was not measured, only {inside}."),
        (not between and not given.bandwidth, f"One node: the link between nodes was not measured, only {outside}."),
    ):
        if lacks:
            yield line


def _wanted(given: argparse.Namespace, first: bool) -> float | None:
    """The bytes a second of --bandwidth, if it is given. Raises BadInput, also where the file is there."""
    if first and given.cluster.exists():
        raise BadInput(f"{given.cluster}: is there already")
    if given.nodes is not None and given.nodes < 1:
        raise BadInput(f"--nodes {given.nodes}: at least 1")
    return None if given.bandwidth is None else bandwidth_of(given.bandwidth)


def bandwidth_of(text: str) -> float:
    """Bytes a second. Raises BadInput."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kMGT]?)(bit|B)(?:/s)?", text)
    if not found or not float(found[1]):
        raise BadInput(f"--bandwidth {text}: expected a number and its unit, such as 1Gbit or 12.5GB")
    return float(found[1]) * 1000.0 ** " kMGT".index(found[2] or " ") / (8 if found[3] == "bit" else 1)


def doubts(factors: list[float], load: float, cores: int) -> Iterator[str]:
    """Why the times may be those of a busy machine."""
    again = "calibrate again on a quiet machine"
    if factors[-1] > SPREAD:
        yield f"The slowest gradient took {factors[-1]:.1f} times as long as others of its size: {again}."
    if load > cores:
        yield f"Before it began, {load:.1f} processes wanted the {some(cores, 'core')} of a node: {again}."


def _of_all(transport: Transport, together: int, measure: Callable[[], T], what: str) -> list[T]:
    """The results of `measure` on all ranks that have a core of their own: `together` ranks of each node."""
    mine = None
    if transport.local_rank < together:
        with transport.working():
            mine = measure()
    found = map(json.loads, transport.gather_texts(json.dumps(mine), what))
    return [each for each in found if each is not None]


def _gradients(config: Config, corpus: Part, network: Model) -> list[tuple[int, float]]:
    """Samples and seconds of successive gradients, with the sizes of minibatches in turns. The minibatches follow one
    another as in a training, since samples that are in the cache already would take less."""
    seed, dtype = config.training.seed, config.training.dtype
    learner = Learner(network, corpus, Training(seed=seed, dtype=dtype), deadline=config.run.deadline)
    theta = network.initial(seed, dtype)
    out, whole = np.empty_like(theta), max(1, min(config.training.minibatch, corpus.samples))
    sizes = sorted({max(1, round(share * whole)) for share in SIZES})
    works = list(_in_turns(sizes, corpus.samples))
    learner.expect(works)
    coming = iter(works)
    found = _timed([lambda: learner.gradient(theta, out, next(coming))] * len(sizes), SECONDS)
    learner.loader.close()
    return [pair for turn in found for pair in zip(sizes, turn, strict=True)]


def _in_turns(sizes: Sequence[int], samples: int) -> Iterator[Work]:
    """Minibatches of these sizes, over and over, each of the samples that come next."""
    start = 0
    for size in list(sizes) * (MOST + 1):
        start = start if start + size <= samples else 0
        yield Work(0, start, size, size)
        start += size


def _work(config: Config, corpus: Part, network: Model) -> dict[str, dict[str, float]]:
    """Seconds for a byte of an update, of a pass that copies or checks, of a pass that chooses entries, and of the
    entries themselves; and for a sample of an evaluation. The keys are those of a cluster's file."""
    theta = network.initial(config.training.seed, config.training.dtype)
    parts, scratch, rule = list(block_slices(slice(0, theta.size))), scratch_for(theta), CPU.fast(classical)
    count = min(-(-CACHES // (3 * theta.nbytes)), MOST)
    sets = cycle([np.ones((3, theta.size), theta.dtype) for _ in range(count)])

    def updates() -> None:
        x, velocity, gradient = next(sets)
        for b in parts:
            rule(x[b], velocity[b], gradient[b], scratch[: b.stop - b.start], eta=0.0, mu=0.9)

    def passes() -> None:
        x, velocity, _ = next(sets)
        np.copyto(velocity, x)
        CPU.checksum(velocity)

    count = min(TOGETHER, corpus.samples)
    batch = corpus.gather(np.arange(count), corpus.form.room(count, theta.dtype))
    delta, entries = _sparse(theta[: CACHES // theta.itemsize])
    return {
        "update": {"seconds_per_byte": _median(updates) / theta.nbytes},
        "copy": {"seconds_per_byte": _median(passes) / theta.nbytes / 2},
        "delta": {"seconds_per_byte": delta},
        "entries": {"seconds_per_byte": entries},
        "evaluation": {"seconds_per_sample": _median(lambda: network.evaluate(theta, batch)) / count},
    }


def _sparse(theta: Array) -> tuple[float, float]:
    """Seconds for a byte of a residual that entries are chosen from, and for a byte of a hundredth of its elements: of
    coding or decoding them, and of applying them."""
    residual = np.random.default_rng(0).standard_normal(theta.size).astype(theta.dtype)
    nothing, counts, weights = np.zeros_like(theta), np.zeros(theta.size, np.int32), np.zeros_like(theta)
    words, wire = np.empty(theta.size, np.uint32), WireForm(theta.size, 1, "auto")
    out = np.empty(wire.capacity, np.uint8)
    chosen = Entries(words[: CPU.emit(residual, nothing, words, scale=1.0, threshold=ABOVE)].copy())

    def exchange() -> None:
        decoded = wire.decode(wire.encode(chosen, 0, 0, 1, ABOVE, out), 0)[1]
        for step in (1, -1):
            CPU.apply_words(decoded.words, step, counts, weights)

    delta = _median(lambda: CPU.emit(residual, nothing, words, scale=1.0, threshold=np.inf))
    entries = _median(exchange) / (2 * chosen.words.nbytes) if chosen.words.size else 0.0
    return delta / theta.nbytes, entries


def _timed(actions: Sequence[Callable[[], object]], limit: float) -> list[list[float]]:
    """Seconds of actions in turns, for this many seconds in all; the first turn, which compiles, is not counted."""
    found: list[list[float]] = []
    began = time.perf_counter()
    while len(found) <= MOST and (len(found) <= LEAST or time.perf_counter() - began <= limit):
        found.append([])
        for action in actions:
            before = time.perf_counter()
            action()
            found[-1].append(time.perf_counter() - before)
    return found[1:]


def _median(action: Callable[[], object]) -> float:
    """Seconds of an action, the median of several."""
    return float(np.median(_timed([action], SHORT)))


def line(samples: Array, seconds: Array) -> tuple[float, float]:
    """Seconds of no sample and of each further one, neither negative: a line through the sizes' medians."""
    sizes = np.unique(samples)
    medians = np.array([np.median(seconds[samples == size]) for size in sizes])
    if len(sizes) > 1:
        slope, start = np.polyfit(sizes, medians, 1)
        if slope > 0 and start >= 0:
            return float(start), float(slope)
    return 0.0, float(np.sum(medians * sizes) / np.sum(sizes * sizes))  # the best line through no seconds


def spread(samples: Array, seconds: Array, start: float, slope: float) -> list[float]:
    """Equidistant quantiles of measured seconds ÷ the line's."""
    factors = np.quantile(seconds / (start + slope * samples), np.linspace(0, 1, QUANTILES))
    return [float(f"{factor:.3g}") for factor in factors]


def _connection(measured: Link) -> dict[str, float]:
    return {"latency": _short(measured.latency), "bandwidth": _short(measured.bandwidth)}


def _short(number: float | np.floating) -> float:
    return float(f"{number:.4g}")
