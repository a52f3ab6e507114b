"""What simulating ranks costs beside their gradients: CPU time of the process ÷ CPU time within gradients.

    OPENBLAS_NUM_THREADS=1 python benchmarks/simulation/cost.py [RANKS] [UPDATES] [ALGORITHM ...]

Trains the digits' network, four times as wide, on a simulated cluster without evaluations; each rank computes about
UPDATES gradients. What remains is the rules, the messages, turns of threads and the start.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from mpitrain.__main__ import main as mpitrain
from mpitrain.models.network import Network

CLUSTER = """
nodes = {nodes}
ranks_per_node = 1
cores_per_node = 1
[gradient]
seconds = 1e-2
seconds_per_sample = 0.0
[within_node]
latency = 1e-6
bandwidth = 5e9
[between_nodes]
latency = 3e-5
bandwidth = 1.25e9
"""
MINIBATCH, SAMPLES = 128, 1438


def main(ranks: int = 80, updates: int = 10, *names: str) -> None:
    """Print a line per algorithm."""
    spent = [0.0, 0]
    compute = Network.loss_and_gradient

    def timed(self: Network, *given: object, **more: object) -> object:
        began = time.thread_time()
        try:
            return compute(self, *given, **more)  # type: ignore[arg-type]
        finally:
            spent[0] += time.thread_time() - began
            spent[1] += 1

    Network.loss_and_gradient = timed  # type: ignore[method-assign, assignment]
    for name in names or ("asgd", "easgd", "allreduce"):
        with tempfile.TemporaryDirectory() as folder:
            cluster = Path(folder) / "cluster.toml"
            cluster.write_text(CLUSTER.format(nodes=ranks))
            spent[:] = 0.0, 0
            minibatch = MINIBATCH * ranks if name == "allreduce" else MINIBATCH
            keys = {
                "algorithm.name": name,
                "model.width": 4,
                "training.minibatch": minibatch,
                "training.learning_rate": 1e-3,
                "training.epochs": updates * ranks * MINIBATCH / SAMPLES,
                "run.evaluate_every": 0,
                "run.checkpoint_every": 0,
                "run.progress": "none",
            }
            settings = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
            began = time.process_time()
            status = mpitrain(["simulate", "--cluster", str(cluster), *settings, "--out", f"{folder}/run"])
            total = time.process_time() - began
            if status:
                sys.exit(f"{name}: exit status {status}")
        each = 1e3 * spent[0] / max(spent[1], 1)
        print(
            f"{name}: {spent[1]} gradients of {each:.1f} ms on {ranks} ranks: "
            f"{total:.1f} s, {total / spent[0]:.2f} times the gradients",
            flush=True,
        )


if __name__ == "__main__":
    np.seterr(all="ignore")
    main(*map(int, sys.argv[1:3]), *sys.argv[3:])
