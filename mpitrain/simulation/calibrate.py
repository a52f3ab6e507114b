"""`mpitrain calibrate`: measure the file that describes this machine and a network to `mpitrain simulate`."""

import argparse
import platform
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tomli_w
from threadpoolctl import threadpool_limits

from mpitrain.algorithms.server import update
from mpitrain.api.options import TrainOptions
from mpitrain.api.setup import prepare
from mpitrain.api.shared import shared_code, shared_config
from mpitrain.config import Config
from mpitrain.data.corpus import Corpus
from mpitrain.device import CPU
from mpitrain.errors import BadInput, some
from mpitrain.files import write_whole
from mpitrain.flat import Array, block_slices, scratch_for
from mpitrain.models.model import Model
from mpitrain.monitoring.evaluation import TOGETHER
from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import agreed, ending_together
from mpitrain.mpi.links import Link, link, pairs
from mpitrain.sampling.batch import Batch

SECONDS = 60.0  # that gradients are measured for, at most
SIZES, LEAST, MOST = (0.25, 0.5, 1.0), 5, 100  # of training.minibatch; how often each is measured
SHORT = 5.0  # seconds that updates, copies and evaluations are each measured for, at most
QUANTILES = 21


def calibrate(options: argparse.Namespace) -> int:
    """Write the file. Collective; the exit status."""
    transport = Transport()
    return ending_together(transport, lambda: _calibrate(transport, options.cluster, options.config, options.set))


def _calibrate(transport: Transport, path: Path, file: Path | None, overrides: list[str]) -> int:
    def free() -> None:
        if transport.rank == 0 and path.exists():
            raise BadInput(f"{path}: is there already")

    agreed(transport, free, "the file")
    options = TrainOptions(file, tuple(overrides))
    config = shared_config(transport, options)
    code = shared_code(transport, config, options)
    _, corpus, network = agreed(transport, lambda: prepare(transport, config, options, code), "the preparation")
    hosts = transport.gather_texts(platform.node(), "the ranks' nodes")
    cores = min(map(int, transport.gather_texts(str(transport.node_cores), "the nodes' cores")))
    number = transport.threads(config.run.threads)
    with threadpool_limits(number):
        together = max(1, cores // number)
        samples, seconds = _of_all(transport, config, corpus, network, together)
        work = _work_of_all(transport, config, corpus, network, together)
    within, between = (link(transport, pair) for pair in pairs(hosts))
    about = (
        f"# Gradients of {network.name} ({network.layout.size:,} parameters, {config.training.dtype}, "
        f"{config.run.matmul}), {some(number, 'thread')} a rank.\n"
    )
    text = described(hosts, together, samples, seconds, within, between, about, work)
    agreed(transport, lambda: None if transport.rank else write_whole(path, text), "the file")
    if transport.rank == 0:
        print(text, end="")
    return 0


def _of_all(transport: Transport, config: Config, corpus: Corpus, network: Model, together: int) -> tuple[Array, Array]:
    """Samples and seconds of the gradients of all ranks that have a core of their own, `together` of a node."""
    mine = np.zeros((2, len(SIZES) * MOST))
    if transport.local_rank < together:
        with transport.working():
            found = _gradients(config, corpus, network)
        mine[:, : len(found)] = np.transpose(found)
    everything = np.zeros((transport.size, *mine.shape))
    everything[transport.rank] = mine
    transport.sum(everything.reshape(-1), "the others' gradients")
    counted = everything[:, 0].ravel() > 0
    return everything[:, 0].ravel()[counted], everything[:, 1].ravel()[counted]


def _gradients(config: Config, corpus: Corpus, network: Model) -> list[tuple[int, float]]:
    """Samples and seconds of one gradient after another, the sizes of minibatches in turns."""
    theta = network.initial(config.training.seed, config.training.dtype)
    out, rng = np.empty_like(theta), np.random.default_rng(0)
    whole = max(1, min(config.training.minibatch, corpus.samples))
    sizes = sorted({max(1, round(share * whole)) for share in SIZES})
    batch = corpus.gather(np.arange(whole), corpus.form.room(whole, theta.dtype))

    def gradient(size: int) -> Callable[[], object]:
        part = Batch(batch.inputs[:size], batch.targets[:size])
        return lambda: network.loss_and_gradient(theta, out, part, rng)

    found = _timed([gradient(size) for size in sizes], SECONDS)
    return [pair for turn in found for pair in zip(sizes, turn, strict=True)]


def _work_of_all(
    transport: Transport, config: Config, corpus: Corpus, network: Model, together: int
) -> dict[str, dict[str, float]]:
    """What updates, copies and evaluations take: the mean over the ranks that have a core of their own."""
    sums = np.zeros(4)
    if transport.local_rank < together:
        with transport.working():
            sums[:] = *_work(config, corpus, network), 1
    transport.sum(sums, "the others' updates")
    updates, copies, evaluations = (_short(float(seconds)) for seconds in sums[:3] / sums[3])
    return {
        "update": {"seconds_per_byte": updates},
        "copy": {"seconds_per_byte": copies},
        "evaluation": {"seconds_per_sample": evaluations},
    }


def _work(config: Config, corpus: Corpus, network: Model) -> tuple[float, float, float]:
    """Seconds of a server's update and of a pass that copies or checks, for a byte; of an evaluation, for a sample."""
    theta = network.initial(config.training.seed, config.training.dtype)
    gradient, velocity = np.zeros_like(theta), np.zeros_like(theta)
    parts = list(block_slices(slice(0, theta.size)))
    scratch, rule = scratch_for(theta), CPU.fast(update)

    def updates() -> None:
        for b in parts:
            rule(theta[b], velocity[b], gradient[b], scratch[: b.stop - b.start], eta=0.0, mu=0.9, alpha=1.0)

    def passes() -> None:
        np.copyto(gradient, velocity)
        CPU.checksum(gradient)

    count = min(TOGETHER, corpus.samples)
    batch = corpus.gather(np.arange(count), corpus.form.room(count, theta.dtype))
    evaluation = _median(lambda: network.evaluate(theta, batch)) / count
    return _median(updates) / theta.nbytes, _median(passes) / theta.nbytes / 2, evaluation


def _timed(actions: Sequence[Callable[[], object]], limit: float) -> list[list[float]]:
    """Seconds of actions in turns, for so many seconds in all; the first turn, which compiles, is not counted."""
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


def described(
    hosts: list[str],
    cores: int,
    samples: Array,
    seconds: Array,
    within: Link | None,
    between: Link | None,
    first: str,
    work: dict[str, dict[str, float]],
) -> str:
    """The text of the file."""
    start, slope = line(samples, seconds)
    nodes, most = len(set(hosts)), max(Counter(hosts).values())
    lines = [first]
    if within is None:
        lines.append("# One rank a node: the link within a node was not measured, only copied.\n")
    if between is None:
        lines.append("# One node: the link between nodes was not measured, only copied.\n")
    known = within or between or Link()
    content = {
        "nodes": nodes,
        "ranks_per_node": most,
        "cores_per_node": cores,
        "gradient": {
            "seconds": _short(start),
            "seconds_per_sample": _short(slope),
            "spread": spread(samples, seconds, start, slope),
        },
        **work,
        "within_node": _connection(within or known),
        "between_nodes": _connection(between or known),
    }
    text = tomli_w.dumps(content)
    return "".join(lines) + re.sub(r"\[\n[^\]]*\]", lambda found: f"[{' '.join(found[0][1:-1].split())[:-1]}]", text)


def _connection(measured: Link) -> dict[str, float]:
    return {"latency": _short(measured.latency), "bandwidth": _short(measured.bandwidth)}


def _short(number: float) -> float:
    return float(f"{number:.4g}")
