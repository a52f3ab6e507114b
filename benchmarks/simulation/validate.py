"""Simulated against real runs, on this machine and within the hour.

    python benchmarks/simulation/validate.py OUT [--rounds 5] [--rates none 1gbit 100mbit] [--only NAME ...]

`mpitrain calibrate` measures the machine; then each setting runs really, `--rounds` times in turns with the others, and
once simulated. Settings with `--rates` are on two emulated hosts, which want root (see benchmarks/twohosts). What is in
OUT already is not run again. The machine must have nothing else to do.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "twohosts"))
from launch import converged, table, wait_for
from twohosts import Link, missing

COMMON = {"model.width": 4, "training.minibatch": 128, "run.evaluate_every": 0, "run.checkpoint_every": 0}
COMMON |= {"run.threads": 1, "run.progress": "none", "run.device": "cpu"}
SPARSE = {"algorithm.name": "sparse-delta", "training.learning_rate": 0.02}
#: Name: ranks, settings.
ONE_HOST: dict[str, tuple[int, dict[str, Any]]] = {
    "allreduce": (2, {"algorithm.name": "allreduce"}),
    "sparse-delta": (2, SPARSE),
    "hybrid a": (2, {"algorithm.name": "hybrid", "algorithm.scheme": "a"}),
    "hybrid b": (2, {"algorithm.name": "hybrid", "algorithm.scheme": "b"}),
    "hybrid c": (2, {"algorithm.name": "hybrid", "algorithm.scheme": "c"}),
    "asgd": (3, {"algorithm.name": "asgd"}),
    "easgd": (3, {"algorithm.name": "easgd"}),
    "asgd, shared cores": (4, {"algorithm.name": "asgd"}),
    "easgd, shared cores": (4, {"algorithm.name": "easgd"}),
    "allreduce, shared cores": (4, {"algorithm.name": "allreduce"}),
}
TWO_HOSTS = {name: (2, ONE_HOST[name][1]) for name in list(ONE_HOST)[:7]}
#: Minibatches are 12 an epoch; a dense exchange of 2.4 MB takes 0.2 s at 100 Mbit/s.
EPOCHS = {"one host": 30, "none": 30, "1gbit": 20, "100mbit": 3}
DEADLINE = 600  # seconds


@dataclass(frozen=True)
class Host:
    """How ranks are launched: on this host, or on two emulated ones with this rate between them."""

    rate: str

    @contextmanager
    def launcher(self) -> Iterator[Any]:
        """A function of ranks and a command."""
        if self.rate == "one host":
            mpirun = str(Path(sys.executable).with_name("mpirun"))
            yield lambda ranks, command: [mpirun, "-n", str(ranks), *command]
        else:
            with Link(self.rate) as link:
                yield lambda ranks, command: link.launch(command, ranks)


def start(what: str, command: list[str]) -> None:
    """Run a command to its end; ends the program when it fails."""
    wait_for(what, [subprocess.Popen(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT)], DEADLINE)


ENVIRONMENT = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}


def words(settings: dict[str, Any]) -> list[str]:
    """As options of the command line."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]


def compare(out: Path, host: Host, options: argparse.Namespace) -> list[list[Any]]:
    """The rows of the table for one kind of host."""
    every = ONE_HOST if host.rate == "one host" else TWO_HOSTS
    cases = {name: case for name, case in every.items() if options.only is None or name in options.only}
    place = out / host.rate.replace(" ", "-")
    place.mkdir(parents=True, exist_ok=True)
    common = COMMON | {"training.epochs": options.epochs or EPOCHS[host.rate]}
    cluster = place / "cluster.toml"
    real: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    with host.launcher() as launch:
        if not cluster.exists():
            calibrate = [sys.executable, "-m", "mpitrain", "calibrate", str(cluster), *words(COMMON)]
            start("calibrate", launch(2, calibrate))
            widen(cluster)
        for number in range(options.rounds):
            for name, (ranks, settings) in cases.items():
                run = place / f"{name.replace(' ', '-')}-{number}"
                if not (run / "summary.json").exists():
                    told = words(common | settings)
                    start(run.name, launch(ranks, [sys.executable, "-m", "mpitrain", *told, "--out", str(run)]))
                real[name].append(json.loads((run / "summary.json").read_text()))
    return [
        row(host, name, real[name], converged(place / name.replace(" ", "-"), ranks, cluster, common | settings))
        for name, (ranks, settings) in cases.items()
    ]


def widen(cluster: Path) -> None:
    """Room for four ranks on one node: they share its cores."""
    text = cluster.read_text()
    cluster.write_text(text.replace("ranks_per_node = 2", "ranks_per_node = 4"))


def row(host: Host, name: str, real: list[dict[str, Any]], simulated: dict[str, Any]) -> list[Any]:
    """A line of the table."""
    rates = [told["samples_per_second"] for told in real]
    middle, told = statistics.median(rates), simulated["samples_per_second"]
    allowed = 0.15 if "shared" in name else 0.05
    spread = max(max(rates) / middle - 1, 1 - min(rates) / middle)
    errors = sorted(each["test_error"] for each in real)
    sent = sorted(each["bytes_sent"] for each in real)
    own = simulated["bytes_sent"]
    stale = "staleness_histogram" in simulated
    return [
        host.rate,
        name,
        f"{middle:,.0f} ({min(rates):,.0f} to {max(rates):,.0f})",
        f"{told:,.0f}",
        f"{told / middle:.2f}",
        "yes" if abs(told / middle - 1) <= max(allowed, spread) else "**no**",
        "equal" if sent[0] == sent[-1] == own else f"{own / statistics.median(sent):.4f}",
        f"{statistics.median(ks(each, simulated) for each in real):.2f}" if stale else "–",
        f"{errors[0]:.2%} to {errors[-1]:.2%}; {simulated['test_error']:.2%}",
    ]


def ks(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Kolmogorov-Smirnov distance of two histograms of staleness."""
    ages = range(1 + max(int(age) for told in (one, other) for age in told.get("staleness_histogram", {"0": 1})))

    def distribution(told: dict[str, Any]) -> Any:
        counts = np.array([told.get("staleness_histogram", {"0": 1}).get(str(age), 0) for age in ages], float)
        return np.cumsum(counts) / counts.sum()

    return float(np.abs(distribution(one) - distribution(other)).max())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rates", nargs="*", default=["none", "1gbit", "100mbit"])
    parser.add_argument("--only", nargs="+", choices=ONE_HOST, help="default: all settings")
    parser.add_argument("--epochs", type=float, help="of every run; default: 30, 20 and 3, by rate")
    options = parser.parse_args()
    if options.rates and (why := missing()):
        sys.exit(why)
    header = [
        "hosts",
        "algorithm",
        "real samples/s",
        "simulated",
        "ratio",
        "within",
        "bytes",
        "staleness",
        "test error",
    ]
    rows = [each for rate in ("one host", *options.rates) for each in compare(options.out, Host(rate), options)]
    print(table(header, rows))


if __name__ == "__main__":
    main()
