"""Table 1 of Krizhevsky 2014 on a folder of image shards: what batch sizes cost in accuracy.

    OPENBLAS_NUM_THREADS=1 python benchmarks/hybrid/table.py FOLDER --set data.path=SHARDS [--seeds 1 2 3] [--set ...]

Each line is the mean of a run for each seed, with every seed's error; cross-entropy and error are of the test part.
Runs are kept in FOLDER and not repeated. Ranks are simulated in one process, which gives, up to rounding, what ranks of
their own give. The settings are table.toml's.
"""

import argparse
import sys
import tomllib
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))

from launch import CLUSTER, converged, table

CONFIG = Path(__file__).with_name("table.toml")
HEADER = ["ranks", "batch size (conv, fc)", "cross-entropy", "error", "errors of the seeds"]


def line(folder: Path, ranks: int, fc_batch: str, seeds: list[int], extra: dict[str, Any]) -> list[Any]:
    """A run for each seed as a line of the table."""
    settings = {"algorithm.fc_batch": fc_batch, **extra}
    names = {seed: folder / f"{ranks}-{fc_batch}-{seed}" for seed in seeds}
    told = [
        converged(name, ranks, CLUSTER, {**settings, "training.seed": seed}, CONFIG) for seed, name in names.items()
    ]
    batch = settings.get("training.minibatch", tomllib.loads(CONFIG.read_text())["training"]["minibatch"])
    errors = [summary["test_error"] for summary in told]
    return [
        ranks,
        f"({ranks * batch}, {ranks * batch if fc_batch == 'full' else batch})",
        f"{sum(summary['test_loss'] for summary in told) / len(told):.3f}",
        f"{sum(errors) / len(errors):.1%}",
        ", ".join(f"{error:.1%}" for error in sorted(errors)),
    ]


def main() -> None:
    """Print the table, its lines in the paper's order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    extra = dict(_parsed(word) for word in options.set)
    cells = [(ranks, way) for ranks in options.ranks for way in (("full", "sub") if ranks > 1 else ("full",))]
    print(table(HEADER, [line(options.folder, *cell, options.seeds, extra) for cell in cells]))


def _parsed(word: str) -> tuple[str, Any]:
    key, _, text = word.partition("=")
    try:
        return key, tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return key, text


if __name__ == "__main__":
    main()
