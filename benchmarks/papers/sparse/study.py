"""What sparse delta exchange costs in accuracy and saves in traffic (Strom 2015, §2.5, Table 3).

python -m mpitrain prepare speech CORPUS --language bn --hours 1 --classes 1998 --bins 20
python benchmarks/papers/sparse/study.py thresholds CORPUS OUT     Table 3: by threshold, two ranks
python benchmarks/papers/sparse/study.py accuracy CORPUS OUT       sgd and 2, 4, 8 ranks, three seeds each
python benchmarks/papers/sparse/study.py bits CORPUS OUT           §2.5: 1, 2, 4 bits and unquantised at equal traffic
python benchmarks/papers/sparse/study.py teams CORPUS OUT          §4: 2 × 2 and 2 × 4 ranks against 4 and 8, simulated
python benchmarks/papers/sparse/study.py peers digits OUT          1 to 32 peers with the default keys, simulated

`digits` for CORPUS takes the embedded digits. Runs that are already in OUT are not repeated. `--set KEY=VALUE`
overrides the settings of all runs.
"""

import argparse
import json
import statistics
import sys
from math import exp, log
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import launch
from launch import converged, run, simulate, table

COMMON: dict[str, Any] = {"run.threads": 1, "run.checkpoint_every": 0, "training.seed": 1}
SPEECH: dict[str, Any] = COMMON | {
    "data.context": [8, 8],
    "model.preset": "strom2015-dnn",
    "model.width": 0.25,
    "training.minibatch": 64,
    "training.learning_rate": 0.2,
    "training.epochs": 3,
}
DIGITS: dict[str, Any] = COMMON | {"training.minibatch": 8, "training.learning_rate": 0.05, "training.epochs": 20}
#: By corpus: thresholds of Table 3, the one that the other tables take.
THRESHOLDS = {"speech": ([1.0, 2.0, 4.0, 6.0, 9.0, 12.0], 2.0), "digits": ([0.25, 0.5, 1.0, 2.0, 4.0], 1.0)}
#: Thresholds of 1 bit whose traffic the other numbers of bits are given, and how far from it they may be.
EQUAL, TOLERANCE = {"speech": (2.0, 6.0), "digits": (0.25, 1.0)}, 0.05
CLUSTER = Path(__file__).with_name("nodes.toml")
#: What peers may share: their minibatch and the learning rate of its mean.
SHARED = ("training.minibatch", "training.learning_rate")
BYTES = ("bytes_per_minibatch", "bits_per_element")


class Study:
    """One corpus and where its runs go."""

    def __init__(self, corpus: str, out: Path, more: dict[str, Any]) -> None:
        self.kind = "digits" if corpus == "digits" else "speech"
        path = {} if corpus == "digits" else {"data.path": str(Path(corpus).resolve())}
        self.settings = (DIGITS if corpus == "digits" else SPEECH) | path | more
        self.out = out

    def sparse(self, name: str, ranks: int, threshold: float, more: dict[str, Any]) -> dict[str, Any]:
        """A run of sparse-delta; messages are Golomb–Rice coded, as `auto` does, unless overridden."""
        own = {"algorithm.name": "sparse-delta", "algorithm.threshold": threshold, "algorithm.codec": "auto"}
        return run(self.out / name, ranks, own | self.settings | more)

    def sgd(self, name: str, more: dict[str, Any]) -> dict[str, Any]:
        """The same training on one rank."""
        settings = {key: value for key, value in self.settings.items() if not key.startswith("algorithm.")}
        return run(self.out / name, 1, {"algorithm.name": "sgd"} | settings | more)


def thresholds(study: Study) -> None:
    """Update size, compression and accuracy by threshold."""
    base = study.sgd("sgd-1", {})
    rows: list[list[Any]] = [["sgd", f"{base['samples_per_second']:,.0f}", "–", "–", "–", _percent(base), "–"]]
    for threshold in THRESHOLDS[study.kind][0]:
        told = study.sparse(f"threshold-{threshold:g}", 2, threshold, {})
        rows.append([f"{threshold:g}", f"{told['samples_per_second']:,.0f}", *_traffic(told), _percent(told)])
        rows[-1].append(f"{1 - told['test_error'] / base['test_error']:+.1%}")
    header = ["threshold", "samples/s", "KB a minibatch", "bits an element", "compression", "test error", "reduction"]
    print(table(header, rows))


def accuracy(study: Study) -> None:
    """Mean and spread of the test error over three seeds; p ranks share sgd's minibatch, so that η is the same for all.

    Of ranks that each took a whole one, 8 would move the weights by 8 minibatches at once. A rank's residual grows by a
    p-th of the samples: the threshold falls with p, from the other tables' at p = 2, so that no gradient waits longer.
    """
    rows = []
    for ranks in (1, 2, 4, 8):
        errors, ratios = [], []
        for seed in (1, 2, 3):
            more = {"training.seed": seed}
            if ranks == 1:
                told = study.sgd(f"sgd-{seed}", more)
            else:
                share = {key: study.settings[key] / ranks for key in SHARED}
                more |= share | {"training.minibatch": int(share["training.minibatch"])}
                threshold = THRESHOLDS[study.kind][1] * 2 / ranks
                told = study.sparse(f"shared-{ranks}-{threshold:g}-{seed}", ranks, threshold, more)
                ratios.append(told["compression_ratio"])
            errors.append(told["test_error"])
        spread = f"{statistics.mean(errors):.2%} ± {statistics.stdev(errors):.2%}"
        name = "sgd" if ranks == 1 else f"sparse-delta, {ranks} ranks"
        rows.append([name, spread, f"{statistics.mean(ratios):,.0f}" if ratios else "–"])
    print(table(["", "test error, three seeds", "compression"], rows))


def bits(study: Study) -> None:
    """Test error at equal traffic over three seeds, at the best learning rate of three by seed 1.

    In round-robin order, so that a busy machine changes nothing.
    """
    for base in EQUAL[study.kind]:
        goal = _of_bits(study, 1, base, 1.0, 1)["bytes_per_minibatch"]
        rows, found = [], {1.0: base}
        for each in (1, 2, 4, 32):
            tried, ratios = {}, {factor: other / found[1.0] for factor, other in found.items()}
            for factor in (1.0, 0.5, 2.0):
                guess = found[1.0] * ratios.get(factor, 1.0)
                threshold, told = _equal(study, each, guess, factor, goal)
                found[factor] = threshold
                tried[factor] = told.get("dev_error", told["test_error"]), threshold
            factor, (_, threshold) = min(tried.items(), key=lambda pair: pair[1][0])
            runs = [_of_bits(study, each, threshold, factor, seed) for seed in (1, 2, 3)]
            means = {key: statistics.mean(one[key] for one in runs) for key in ("density", *BYTES)}
            errors = [one["test_error"] for one in runs]
            rows.append([each if each < 32 else "unquantised", f"{threshold:.3g}", f"{means['density']:.3%}"])
            rows[-1] += [f"{means['bytes_per_minibatch']:,.0f}", f"{means['bits_per_element']:.1f}", f"{factor:g}"]
            rows[-1] += [f"{statistics.mean(errors):.2%} ± {statistics.stdev(errors):.2%}"]
            rows[-1] += [", ".join(f"{tried[factor][0]:.2%}" for factor in sorted(tried))]
        header = ["bits", "threshold", "density", "bytes a minibatch", "bits an element, index and header included"]
        print(table([*header, "rate", "test error, three seeds", "error at rates 1/2, 1, 2, seed 1"], rows), flush=True)


def teams(study: Study) -> None:
    """Test error and bytes between two nodes, over three seeds: all ranks as peers, and a team for each node.

    As in `accuracy`, workers share sgd's minibatch and the threshold falls with their number. Of a peer's message to
    all others, those on its own node do not count. In round-robin order, on simulated ranks.
    """
    rows: list[list[Any]] = []
    for ranks in (4, 8):
        for size in (1, ranks // 2):
            workers, runs = ranks // size, []
            share = {key: study.settings[key] / workers for key in SHARED}
            share["training.minibatch"] = int(share["training.minibatch"])
            threshold = THRESHOLDS[study.kind][1] * 2 / workers
            own = {"algorithm.name": "sparse-delta", "algorithm.threshold": threshold, "algorithm.codec": "auto"}
            own |= study.settings | share | {"algorithm.order": "round-robin", "run.team": size}
            for seed in (1, 2, 3):
                more = own | {"training.seed": seed}
                runs.append(converged(study.out / f"teams-{ranks}-{size}-{seed}", ranks, CLUSTER, more))
            within = statistics.mean(told.get("bytes_sent_within_teams", 0) for told in runs)
            sent = statistics.mean(told["bytes_sent"] for told in runs) - within
            elsewhere = 1.0 if size > 1 else (ranks - ranks // 2) / (ranks - 1)
            errors = [told["test_error"] for told in runs]
            rows.append([f"{workers} teams of {size}" if size > 1 else f"{ranks} peers", share["training.minibatch"]])
            rows[-1] += [f"{threshold:g}", f"{statistics.mean(errors):.2%} ± {statistics.stdev(errors):.2%}"]
            rows[-1] += [f"{sent * elsewhere / 1e6:.2f}", f"{(sent * (1 - elsewhere) + within) / 1e6:,.2f}"]
    header = ["", "minibatch", "threshold", "test error, three seeds", "MB between nodes", "MB within nodes"]
    print(table(header, rows))


def peers(study: Study) -> None:
    """Test error by the number of peers. With the same keys they move the weights by the sum of p minibatches' steps.

    Beside them, what alone or together makes that sum smaller, and `allreduce` with the same sum, dense. Seed 1; `–`
    where the training diverged.
    """
    training, threshold = {key: study.settings[key] for key in SHARED}, THRESHOLDS[study.kind][1]
    rows = []
    for ranks in (1, 2, 4, 8, 16, 32):
        minibatch, rate = training[SHARED[0]], training[SHARED[1]]
        few = minibatch // ranks
        share = {"algorithm.threshold": threshold / ranks}
        ways: dict[str, dict[str, Any]] = {
            "same": {},
            "rate": {SHARED[1]: rate / ranks},
            "threshold": share,
            "both": share | {SHARED[1]: rate / ranks},
            "minibatch": share | {SHARED[0]: few, SHARED[1]: rate * few / minibatch},
            "allreduce": {"algorithm.name": "allreduce", "algorithm.momentum": 0.0, SHARED[1]: rate * ranks},
        }
        cells = []
        for way, more in ways.items():
            if way == "minibatch" and ranks > minibatch:
                cells.append("")  # a minibatch cannot be shared by more ranks than it has samples
                continue
            dense = way == "allreduce"
            own = {} if dense else {"algorithm.name": "sparse-delta", "algorithm.threshold": threshold}
            told = simulate(study.out / f"peers-{ranks}-{way}", ranks, launch.CLUSTER, study.settings | own | more)
            cells.append("–" if told is None else f"{told['test_error']:.1%}")
        rows.append([ranks, *cells])
    header = [
        "peers",
        "same keys",
        "rate ÷ p",
        "threshold ÷ p",
        "both ÷ p",
        "threshold, rate and minibatch ÷ p",
        "`allreduce`, rate · p",
    ]
    print(table(header, rows))


def _equal(study: Study, each: int, threshold: float, factor: float, goal: float) -> tuple[float, dict[str, Any]]:
    """The threshold at which messages have `goal` bytes, by secants of their logarithms, and its run."""
    tried: list[tuple[float, float]] = []
    slope = -1.2
    for _ in range(8):
        told = _of_bits(study, each, threshold, factor, 1)
        off = log(told["bytes_per_minibatch"] / goal)
        if abs(off) <= TOLERANCE:
            return threshold, told
        tried.append((log(threshold), off))
        if len(tried) > 1:
            (x0, y0), (x1, y1) = tried[-2:]
            slope = min((y1 - y0) / (x1 - x0), -0.3)
        threshold = float(f"{threshold * exp(-off / slope):.3g}")
    raise RuntimeError(f"no threshold of {each} bits has {goal:.0f} bytes a minibatch: {tried}")


def _of_bits(study: Study, each: int, threshold: float, factor: float, seed: int) -> dict[str, Any]:
    more = {"algorithm.bits": each, "algorithm.order": "round-robin", "training.seed": seed}
    more["training.learning_rate"] = factor * study.settings["training.learning_rate"]
    return study.sparse(f"bits-{each}-{threshold:g}-{factor:g}-{seed}", 2, threshold, more)


def _traffic(told: dict[str, Any]) -> list[str]:
    return [
        f"{told['bytes_per_minibatch'] / 1000:.2f}",
        f"{told['bits_per_element']:.1f}",
        f"{told['compression_ratio']:,.0f}",
    ]


def _percent(told: dict[str, Any]) -> str:
    return f"{told['test_error']:.2%}"


TABLES = {"thresholds": thresholds, "accuracy": accuracy, "bits": bits, "teams": teams, "peers": peers}


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=list(TABLES))
    parser.add_argument("corpus")
    parser.add_argument("out", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    words = parser.parse_args()
    pairs = (word.split("=", 1) for word in words.set)
    study = Study(words.corpus, words.out, {key: json.loads(value) for key, value in pairs})
    TABLES[words.table](study)


if __name__ == "__main__":
    main()
