"""Search for faults in random orders of events: the program's own protocols on simulated ranks.

    python -m tests.search [--from SEED] [--to SEED] [--seconds S]

Every seed is one training of the digits: an algorithm, 2 to 7 ranks, ways and order of exchange, gradients whose times
have a heavy tail, messages that are late, and sometimes a stop request to any rank at any time. It must end, on all
ranks alike; a training that was not stopped has served every sample; replicas are identical; no message is left. A
seed that fails is printed, and fails again in the same way whenever it is run.
"""

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from mpitrain.cli.setup import TrainOptions
from mpitrain.cli.train import train_on
from mpitrain.signals import STOPPED, Stop
from mpitrain.simulation import Job, Link, Network

CENTRES = ("asgd", "mdownpour", "adownpour", "mvadownpour", "easgd", "eamsgd", "downpour", "admm")
OTHERS = ("sparse-delta", "allreduce", "hybrid", "easgd-sync", "eamsgd-sync", "block-momentum")
NAMES = (*CENTRES, *OTHERS)
SAMPLES = 1438  # of an epoch


@dataclass(frozen=True)
class Case:
    """What a seed stands for."""

    keys: tuple[str, ...]
    ranks: int
    two_a_node: bool
    jitter: float
    stop_at: float  # virtual seconds; infinite: never
    stopped: int  # the rank that is asked


def case(seed: int) -> Case:
    """The case of a seed."""
    random, name = np.random.default_rng(seed), NAMES[seed % len(NAMES)]
    ranks = int(random.integers(2, 8))
    keys = ["run.progress=none", "run.device=cpu", "training.epochs=2", f"algorithm.name={name}"]
    if name in CENTRES:
        keys.append(f"run.exchange={random.choice(['auto', 'messages', 'one-sided'])}")
    if name in (*CENTRES, "sparse-delta") and random.random() < 0.5:
        keys.append("algorithm.order=round-robin")
    if random.random() < 0.3:
        keys.append(f"run.checkpoint_samples={int(random.integers(200, 1500))}")
    stop_at = float(random.random() * 3) if random.random() < 0.4 else float("inf")
    jitter = float(10 ** random.uniform(-5, -0.5))
    return Case(tuple(keys), ranks, bool(random.random() < 0.5), jitter, stop_at, int(random.integers(ranks)))


def fault(seed: int, folder: Path) -> str:
    """What is wrong with the training of a seed, which writes to this folder; "" for nothing."""
    what, random = case(seed), np.random.default_rng((seed, 1))
    stops = [Stop() for _ in range(what.ranks)]

    def seconds(rank: int, samples: int) -> float:
        if job.scheduler.now > what.stop_at:
            stops[what.stopped].flag = True
        return 1e-4 * samples * float(random.pareto(1.2) + 0.1)

    nodes = [rank // 2 for rank in range(what.ranks)] if what.two_a_node else None
    job = Job[int](what.ranks, Network(Link(1e-4, 1e8), jitter=what.jitter, seed=seed), nodes=nodes, seconds=seconds)
    options = TrainOptions(overrides=what.keys, out=folder)
    try:
        with threadpool_limits(1):
            ended = job.run(lambda transport: train_on(transport, options, stops[transport.rank]))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    summary = json.loads((folder / "summary.json").read_text())
    whole = summary["exit_reason"] != "finished" or summary["samples"] == 2 * SAMPLES
    wrong = {
        f"exit statuses {ended}": len(set(ended)) == 1 and ended[0] in (0, 1, STOPPED),
        f"{summary['samples']} samples": whole,
        f"left: {job.left()}": not job.left(),
        "replicas differ": summary.get("replicas_identical", True),
    }
    return "; ".join(text for text, right in wrong.items() if not right)


def main() -> None:
    """One seed after another; the seeds that fail, and the last one tried."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="SEED")
    parser.add_argument("--to", type=int, default=10_000, dest="last", metavar="SEED")
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="S")
    options = parser.parse_args()
    began, failed = time.monotonic(), 0
    seed = options.first
    while seed < options.last and time.monotonic() - began < options.seconds:
        with tempfile.TemporaryDirectory() as folder:
            wrong = fault(seed, Path(folder) / "run")
        if wrong:
            failed += 1
            print(f"seed {seed}: {case(seed)}: {wrong[:500]}", flush=True)
        seed += 1
    print(f"{seed - options.first} seeds, {failed} failed; go on with --from {seed}")


if __name__ == "__main__":
    main()
