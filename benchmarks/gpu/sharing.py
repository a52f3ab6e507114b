"""How many samples a second do ranks that share one GPU train, and does the GPU wait for them?

    python benchmarks/gpu/sharing.py OUT [--networks NAME ...] [--algorithms NAME ...] [--ranks 1 2 4] [--json FILE]

Networks have the sizes of their papers, and corpora are synthetic: the patterns in noise of benchmarks/papers, ten
classes or twenty of frames, beside which the network has outputs for all classes of its paper. A run learns if its loss
ends below that of the best constant outputs. GPU memory and the share of time in which it computed are what NVML says
while ranks train. Ranks are started by the mpirun beside this Python; a run has a deadline, and failing leaves a gap.
"""

import argparse
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from mpitrain.models.presets import PRESETS

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "papers"))
from launch import end
from recipes import Case, best_constants, corpus

#: With the settings that they need here: at its default threshold `sparse-delta` would send every seventh element.
ALGORITHMS: dict[str, dict[str, Any]] = {
    "allreduce": {},
    "asgd": {},
    "easgd": {},
    "sparse-delta": {"algorithm.target_density": 0.001},
}
DEADLINE = 60.0  # seconds a run


class Network(NamedTuple):
    """A preset's samples before windows and crops, how many there are, the minibatch, and other settings."""

    shape: tuple[int, ...]
    samples: int
    minibatch: int
    settings: dict[str, Any]


def frames(dims: int, around: int) -> Network:
    """Speech in windows."""
    return Network((dims,), 1 << 18, 1024, {"data.context": [around, around], "training.learning_rate": 0.02})


def images(side: int, count: int, rate: float) -> Network:
    """Pictures, of which crops are taken."""
    return Network((side, side, 3), count, 128, {"training.learning_rate": rate})


NETWORKS = {
    "zhang2013-dnn": frames(42, 5),
    "strom2015-dnn": frames(20, 8),
    "chan2014-cnn": frames(23, 11),
    "easgd-cifar": images(32, 1 << 15, 0.01),
    "easgd-imagenet": images(232, 1 << 11, 0.005),
    "krizhevsky2014": images(256, 1 << 11, 0.005),
}


@contextlib.contextmanager
def watched() -> Iterator[dict[str, float]]:
    """The most GPU memory in GB, and the share of time in which the GPU computes: the mean of the larger half of what
    NVML says each half second, where that is not nothing, since a run has a beginning and an end."""
    query = ["nvidia-smi", "--query-gpu=memory.used,utilization.gpu", "--format=csv,noheader,nounits", "-lms", "500"]
    found: dict[str, float] = {}
    try:
        smi = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
    except OSError:
        yield found
        return
    try:
        yield found
    finally:
        end([smi])
        lines = [line.split(",") for line in smi.communicate()[0].splitlines() if line.count(",") == 1]
        busy = [float(share) / 100 for _, share in lines if float(share) > 0]
        found["gigabytes"] = max((float(used) for used, _ in lines), default=0.0) / 1024
        found["busy"] = mean(sorted(busy)[len(busy) // 2 :]) if busy else 0.0


def train(out: Path, name: str, algorithm: str, ranks: int, options: argparse.Namespace) -> dict[str, Any] | None:
    """One run: samples a second, the loss at its end, what the GPU did; None when it failed."""
    network, known = NETWORKS[name], PRESETS[name]
    case = Case(network.shape, "", 1, 1, 1, 1.0)
    data = out / "corpora" / name
    there = options.samples or network.samples
    if not data.exists():
        corpus(data, case, there, known.classes)
    samples = options.minibatches * network.minibatch
    settings = {
        "algorithm.name": algorithm,
        "model.preset": name,
        "data.path": str(data),
        "training.epochs": samples / there,
        "training.minibatch": network.minibatch,
        "run.device": options.device,
        "run.matmul": options.matmul,
        "run.evaluate_every": 0,
        "run.checkpoint_every": 0,
        "run.train_subset": 2048,
        **network.settings,
        **ALGORITHMS.get(algorithm, {}),
    }
    said = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    words = [word for each in (*said, *options.set) for word in ("--set", each)]
    folder = out / f"{name}-{algorithm}-{ranks}"
    mpirun = Path(sys.executable).with_name("mpirun")
    command = [str(mpirun), "-n", str(ranks), sys.executable, "-m", "mpitrain", *words, "--out", str(folder)]
    with watched() as gpu:
        failure = launch(command, options.deadline)
    if failure:
        print(f"{name}, {algorithm} on {ranks} ranks: {failure}", file=sys.stderr)
        return None
    summary = json.loads((folder / "summary.json").read_text())
    rate, loss = float(summary["samples_per_second"]), float(summary["train_loss"])
    best = best_constants(case.classes, known.options.output)
    how = {"exchange": summary["exchange"], "time": summary["time"], "seconds": summary["seconds"]}
    return {"samples_per_second": rate, "loss": loss, "constant": best, **gpu, **how}


def launch(command: list[str], deadline: float) -> str:
    """Run mpirun within the deadline; why it failed, "" when it did not."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            errors = process.communicate(timeout=deadline)[1]
        except subprocess.TimeoutExpired:
            end([process])
            return f"no end within {deadline:g} s"
    # Launchers say more than the program, and nothing new.
    said = [line for line in errors.splitlines() if line.startswith("mpitrain: ")]
    why = said[0] if said else errors.strip()[-300:]
    return why or f"exit status {process.returncode}" if process.returncode else ""


def main() -> int:
    """One table, and one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=["strom2015-dnn"])
    parser.add_argument("--algorithms", nargs="+", default=ALGORITHMS)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--minibatches", type=int, default=1000, help="of all ranks together")
    parser.add_argument("--samples", type=int, help="of the corpus; by default as many as suit the network")
    parser.add_argument("--matmul", choices=("float32", "tf32", "bf16"), default="tf32")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="other settings")
    parser.add_argument("--deadline", type=float, default=DEADLINE, help="seconds a run")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    print("| network | algorithm | ranks | samples/s | GPU computes | GPU memory | loss | of constant outputs |")
    print("|---|---|---|---|---|---|---|---|")
    results: list[dict[str, Any]] = []
    for name, algorithm, ranks in (
        (n, a, r) for n in options.networks for a in options.algorithms for r in options.ranks
    ):
        found = train(options.out.resolve(), name, algorithm, ranks, options)
        results.append({"network": name, "algorithm": algorithm, "ranks": ranks, "found": found})
        if found:
            gpu = f"{found.get('busy', 0):.0%} | {found.get('gigabytes', 0):.1f} GB"
            row = f"{found['samples_per_second']:,.0f} | {gpu} | {found['loss']:.3f} | {found['constant']:.3f}"
        print(f"| `{name}` | `{algorithm}` | {ranks} | {row if found else 'failed | | | |'} |", flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if all(each["found"] for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
