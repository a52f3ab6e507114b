"""The papers' own scaling experiments on the simulated clusters of the papers, with small networks.

python -m mpitrain prepare speech BN --language bn --hours 0.5 --classes 200 --bins 20
python benchmarks/papers/scaling.py OUT zhang2013 BN     Table 1: 1 to 4 workers
python benchmarks/papers/scaling.py OUT chan2014 BN      Table 2: 1 to 5 workers, time to three accuracies
python benchmarks/papers/scaling.py OUT easgd2015        Figure 3: 4, 8, 16 workers, time to an error; digits
python benchmarks/papers/scaling.py OUT easgd2015-slow   the same over links of a hundredth of the bandwidth
python benchmarks/papers/scaling.py OUT strom2015 BN     Table 2: 5 to 80 nodes
python benchmarks/papers/scaling.py OUT links BN         80 ranks, 0.1 to 10 Gbit/s: which algorithm is soonest?

A minibatch stands for one of the paper (small.py). Each figure is the mean of the seeds, with the least and the
greatest. Runs that are in OUT are not repeated. `--set KEY=VALUE` overrides what the tables set.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from small import COMMON, PARAMETERS, Runs, Small, corpus, overrides, spread

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from launch import PERCEPTRON, table

CLEAN = "test_clean_error"


Shared = dict[str, Any]


def zhang2013(out: Path, shared: Shared, fixed: Shared, seeds: tuple[int, ...]) -> None:
    """Time of the training and error by workers, for the smallest minibatch that the paper names and for 1024.

    Workers read Θ one-sidedly, again if it has changed meanwhile, or ask the server for it. "Later" is the paper's
    "ASGD_from_iter5": one worker for a third of the training, then four.
    """
    later = out / "zhang-later.toml"
    later.parent.mkdir(parents=True, exist_ok=True)
    later.write_text("[[stages]]\nat = 0.0\nworkers = 1\n[[stages]]\nat = 0.5\nworkers = 4\n")
    shared = shared | {"training.epochs": 1.5, "training.minibatch": 32}
    rows: list[list[Any]] = []
    for minibatch in (256, 1024):
        small = Small("zhang2013", 38_668_265, minibatch, 32, PARAMETERS["speech"])
        runs = Runs(out, small.write(out / f"zhang-{minibatch}.toml"), shared, fixed, seeds=seeds)
        alone = runs.converged(f"zhang-{minibatch}-0-0.1", 1, _rate({"algorithm.name": "sgd"}, 0.1))
        rows.append([minibatch, "1, by SGD", "", "1", "1", spread(_all(alone, CLEAN), "{:.1%}"), "", ""])
        four = (4, "auto", None), (4, "messages", None), (4, "auto", later), (4, "messages", later)
        for workers, exchange, stages in ((1, "auto", None), (2, "auto", None), (3, "auto", None), *four):
            name = f"zhang-{minibatch}-{workers}-0.1" + ("-messages" if exchange == "messages" else "")
            more = {"algorithm.name": "asgd", "algorithm.preset": "zhang2013", "run.exchange": exchange}
            staged = replace(runs, config=stages)
            told = staged.converged(name + ("-later" if stages else ""), workers + 1, _rate(more, 0.1))
            faster = [one["seconds"] / own["seconds"] for one, own in zip(alone, told, strict=True)]
            lost = [own[CLEAN] - one[CLEAN] for one, own in zip(alone, told, strict=True)]
            rows.append([minibatch, f"{workers}, later" if stages else workers, told[0]["exchange"]])
            rows[-1] += [
                spread(faster, "{:.2f}"),
                ("2.2" if stages else "3.2") if workers == 4 else "–",
                spread(_all(told, CLEAN), "{:.1%}"),
            ]
            rows[-1] += [spread(lost, "{:+.1%}"), spread(_all(told, "staleness_mean"))]
    print(table(["minibatch", "workers", "Θ", "speed-up", "paper", "frame error", "lost", "staleness"], rows))


def _all(told: list[dict[str, Any]], key: str) -> list[float]:
    return [float(each[key]) for each in told]


def chan2014(out: Path, shared: Shared, fixed: Shared, seeds: tuple[int, ...]) -> None:
    """Time to 87, 94 and 96 % of one worker's accuracy, which 40, 43 and 44 % are of the paper's 45.9 %.

    One worker's accuracy is the mean of its seeds' best. The soonest of the rates counts, for one worker, too. Workers
    read Θ one-sidedly, or ask the master for it.
    """
    small = Small("chan2014", 4_353_742, 256, 32, PARAMETERS["speech"])
    own = {"training.epochs": 1.5, "training.minibatch": 32, "run.evaluate_every": 0.25}
    runs, rates = Runs(out, small.write(out / "chan.toml"), shared | own, fixed, seeds=seeds), (0.02, 0.01)
    alone = {"algorithm.name": "msgd", "algorithm.nesterov": False}
    master = {"algorithm.name": "asgd", "algorithm.preset": "chan2014", "algorithm.minibatches": 1}
    best = 1 - fmean(runs.soonest("chan-1", 1, rates, alone, CLEAN, 0.0)[0].least)
    targets = [1 - share / 45.9 * best for share in (40, 43, 44)]
    paper = {1: "100%", 2: "81%", 3: "69 to 82%", 4: "70 to 82%", 5: "68 to 77%"}
    base = [runs.soonest("chan-1", 1, rates, alone, CLEAN, target)[0] for target in targets]
    rows = [[1, "", *(spread(times.seconds, "{:.0f} s") for times in base), "100%", spread(base[0].least, "{:.1%}")]]
    for exchange in ("auto", "messages"):
        for workers in (2, 3, 4, 5):
            name = f"chan-{workers}" + ("-messages" if exchange == "messages" else "")
            keys = master | {"run.exchange": exchange}
            cells = []
            for target, one in zip(targets, base, strict=True):
                times, rate = runs.soonest(name, workers + 1, rates, keys, CLEAN, target)
                shares = [each / workers for each in times.faster(one) if each is not None]
                cell = f"{spread(times.seconds, '{:.0f} s')}; {spread(shares, '{:.0%}')}; η = {rate:g}"
                cells.append(cell if shares else "–")
            rows.append([workers, "messages" if exchange == "messages" else "one-sided", *cells])
            rows[-1] += [paper[workers], spread(times.least, "{:.1%}")]
    header = [f"to {1 - target:.1%}; efficiency; rate" for target in targets]
    print(table(["workers", "Θ", *header, "paper's efficiency", "least frame error"], rows))


def easgd2015(out: Path, shared: Shared, fixed: Shared, seeds: tuple[int, ...], links: float = 1.0) -> None:
    """Time to an error, and the least error, by method and workers; the best of the rates for each. On the digits.

    Links have `links` times the bandwidth of the paper's cluster.
    """
    small = Small("easgd2015", 351_946, 128, 16, PARAMETERS["digits"])
    own = {"training.epochs": 10, "training.minibatch": 16, "run.evaluate_every": 0.1}
    cluster = small.write(out / f"easgd-{links:g}.toml", links)
    runs = Runs(out / f"easgd-{links:g}", cluster, shared | own, fixed, PERCEPTRON, seeds)
    key, target = "test_error", 0.05
    methods: dict[str, tuple[Shared, tuple[float, ...]]] = {
        "downpour": ({"algorithm.tau": 1}, (0.05, 0.1, 0.2)),
        "mdownpour": ({}, (0.005, 0.01, 0.02)),
        "easgd": ({"algorithm.tau": 10}, (0.2, 0.4, 0.8)),
        "eamsgd": ({"algorithm.tau": 10}, (0.04, 0.08, 0.16)),
    }
    base, rate = runs.soonest("msgd", 1, (0.02, 0.04, 0.08), {"algorithm.name": "msgd"}, key, target)
    rows = [["msgd", 1, f"{rate:g}", spread(base.least, "{:.1%}"), spread(base.seconds, "{:.1f} s"), "1"]]
    for name, (more, rates) in methods.items():
        for workers in (4, 8, 16):
            # as long for 4, 8 and 16 workers, as in the paper, which takes them all for 150 minutes
            keys = {"algorithm.name": name, "training.epochs": 10 * workers / 4} | more
            times, rate = runs.soonest(f"{name}-{workers}", workers + 1, rates, keys, key, target)
            rows.append([name, workers, f"{rate:g}", spread(times.least, "{:.1%}")])
            rows[-1] += [spread(times.seconds, "{:.1f} s"), spread(times.faster(base))]
    print(table(["method", "p", "best rate", "least error", f"to {target:.0%}", "speed-up"], rows))


STROM = Small("strom2015", 14_578_104, 1024, 64, PARAMETERS["speech"])


def strom2015(out: Path, shared: Shared, fixed: Shared, seeds: tuple[int, ...]) -> None:
    """A tenth of an epoch on at most ten nodes, as the paper's first one; then four by the number of nodes.

    The threshold adapts to the paper's density, 69 KB of messages a minibatch to 58 MB of weights, 1 in 846, and begins
    near it: the paper's own, 4, is one for its network.
    """
    own = {"training.epochs": 0.5, "training.minibatch": 64, "run.evaluate_every": 0.1, "training.learning_rate": 0.005}
    network = STROM.write(out / "strom.toml")
    sparse = {"algorithm.name": "sparse-delta", "algorithm.threshold": 64.0, "algorithm.target_density": 1 / 846}
    paper = {1: "1", 5: "4.3", 10: "8.7", 20: "17", 40: "33", 80: "54"}
    rows, base = [], list[float]()
    for nodes in (1, 5, 10, 20, 40, 80):
        stages = out / f"strom-{nodes}-nodes.toml"
        stages.write_text(
            f"[[stages]]\nat = 0.0\nworkers = {min(nodes, 10)}\n[[stages]]\nat = 0.1\nworkers = {nodes}\n"
        )
        runs = Runs(out, network, shared | own, fixed, stages if nodes > 1 else None, seeds)
        told = runs.converged(f"strom-{nodes}", nodes, sparse if nodes > 1 else {"algorithm.name": "sgd"})
        speeds = [_speed(*pair) for pair in zip(told, runs.curves(f"strom-{nodes}"), strict=True)]
        base = base or speeds
        faster = [own / one for one, own in zip(base, speeds, strict=True)]
        rows.append([nodes, spread(faster), paper[nodes], spread(_all(told, CLEAN), "{:.1%}")])
        keys = {"compression_ratio": "{:.0f}", "emissions_skipped": "{:.0f}"}
        rows[-1] += [spread(_all(told, key), form) if nodes > 1 else "" for key, form in keys.items()]
    print(table(["nodes", "speed", "paper", "frame error", "compression", "messages put off"], rows))


def _speed(told: dict[str, Any], curve: list[dict[str, Any]]) -> float:
    """Samples a second after the first tenth of an epoch."""
    one = next(record for record in curve if record["epoch"] >= 0.1)
    return float((told["samples"] - one["samples"]) / (told["seconds"] - one["seconds"]))


def links(out: Path, shared: Shared, fixed: Shared, seeds: tuple[int, ...]) -> None:
    """80 ranks: seconds to an error, with a link as in the paper's cloud, and with one a tenth and ten times as fast.

    The centre's trainings are four times as long, since each of its workers has only a few minibatches in the others'.
    """
    shared = shared | {"training.epochs": 0.5, "training.minibatch": 64, "run.evaluate_every": 0.1}
    dense = {"algorithm.name": "allreduce", "algorithm.momentum": 0.0}
    longer = {"training.epochs": 2, "run.evaluate_every": 0.25}
    easgd = longer | {"algorithm.name": "easgd", "algorithm.tau": 4}
    sparse = {"algorithm.name": "sparse-delta", "algorithm.threshold": 8.0, "algorithm.target_density": 0.01}
    peers = {"algorithm.name": "sparse-delta", "algorithm.preset": "many-peers", "algorithm.top_k": 16}
    averages = {"algorithm.name": "block-momentum", "algorithm.momentum": 0.0, "algorithm.tau": 4}
    ways: dict[str, tuple[Shared, tuple[float, ...]]] = {
        "allreduce, μ = 0": (dense, (0.2, 0.4)),
        "allreduce, μ = 0.9": (dense | {"algorithm.momentum": 0.9}, (0.05, 0.1)),
        "easgd, τ = 4, one server": (easgd, (0.2,)),
        "easgd, τ = 4, sharded centre": (easgd | {"algorithm.centre": "sharded"}, (0.2,)),
        "sparse-delta, density 1/100": (sparse, (0.005,)),
        "sparse-delta, many-peers, 16 of 4096": (peers, (0.4, 0.8)),
        "block-momentum, τ = 4": (averages, (0.4, 0.8)),
        "block-momentum, τ = 4, 64 of 4096": (averages | {"algorithm.top_k": 64}, (0.4, 0.8)),
    }
    target, rows = 0.90, []
    for name, (keys, rates) in ways.items():
        row: list[Any] = [name]
        for gigabits in (1, 0.1, 10):
            runs = Runs(out, STROM.write(out / f"links-{gigabits}.toml", gigabits), shared, fixed, seeds=seeds)
            where = f"links-{gigabits}-{name.replace(',', '').replace(' ', '').replace('/', '')}"
            times, rate = runs.soonest(where, 80, rates, keys, CLEAN, target)
            rates = (rate,)  # another link makes the same rate the soonest of `allreduce`, whose bits do not change
            told = [each for each in runs.run(f"{where}-{rate:g}", 80, _rate(keys, rate)) if each]
            speeds = [each["samples"] / each["seconds"] * 1024 / 64 for each in told]
            row += [spread(times.seconds, "{:.1f} s"), spread(speeds, "{:,.0f}")]
        rows.append([*row, f"{rate:g}", spread(times.least, "{:.1%}")])
    header = [word for speed in ("1", "0.1", "10") for word in (f"{speed} Gbit/s: to {target:.0%}", "frames/s")]
    print(table(["80 ranks", *header, "rate", "least error at 10 Gbit/s"], rows))


def _rate(keys: Shared, rate: float) -> Shared:
    return keys | {"training.learning_rate": rate}


TABLES: dict[str, Callable[[Path, Shared, Shared, tuple[int, ...]], None]] = {
    "zhang2013": zhang2013,
    "chan2014": chan2014,
    "easgd2015": easgd2015,
    "easgd2015-slow": partial(easgd2015, links=0.01),
    "strom2015": strom2015,
    "links": links,
}


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("paper", choices=list(TABLES))
    parser.add_argument("corpus", nargs="?", help="a folder of speech; all but easgd2015 and easgd2015-slow need it")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    words = parser.parse_args()
    speech = not words.paper.startswith("easgd2015")
    if words.corpus is None and speech:
        parser.error(f"{words.paper} needs the folder CORPUS")
    shared = corpus(words.corpus) if speech else COMMON
    TABLES[words.paper](words.out, shared, overrides(words.set), tuple(words.seeds))


if __name__ == "__main__":
    main()
