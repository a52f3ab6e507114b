"""Table 1 of Krizhevsky 2014, on the embedded digits or on a folder of image shards such as CIFAR-10's.

    OPENBLAS_NUM_THREADS=1 python benchmarks/hybrid/table.py FOLDER [--ranks 1 2 4 8] [--set key=value ...]

Each line is a run, kept in FOLDER and not repeated; cross-entropy and error are of the test part. The settings are
table.toml's. Speed-up only means something where every rank has a core of its own.
"""

import argparse
import sys
import tomllib
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))

from launch import run, table

CONFIG = Path(__file__).with_name("table.toml")
HEADER = ["ranks", "batch size (conv, fc)", "cross-entropy", "error", "time", "speed-up"]


def line(
    folder: Path, ranks: int, fc_batch: str, extra: dict[str, Any], alone: float | None
) -> tuple[list[Any], float]:
    """One run as a line of the table, and its seconds."""
    settings = {"algorithm.fc_batch": fc_batch, **extra}
    summary = run(folder / f"{ranks}-{fc_batch}", ranks, settings, CONFIG)
    batch = settings.get("training.minibatch", tomllib.loads(CONFIG.read_text())["training"]["minibatch"])
    sizes = f"({ranks * batch}, {ranks * batch if fc_batch == 'full' else batch})"
    seconds = summary["seconds"]
    gain = f"{(alone or seconds) / seconds:.2f}x"
    return [
        ranks,
        sizes,
        f"{summary['test_loss']:.4f}",
        f"{summary['test_error']:.2%}",
        f"{seconds:.1f} s",
        gain,
    ], seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    extra = dict(_parsed(word) for word in options.set)
    rows, alone = [], None
    for ranks in options.ranks:
        for fc_batch in ("full", "sub") if ranks > 1 else ("full",):
            row, seconds = line(options.folder, ranks, fc_batch, extra, alone)
            alone = alone or seconds
            rows.append(row)
    print(table(HEADER, rows))


def _parsed(word: str) -> tuple[str, Any]:
    key, _, text = word.partition("=")
    try:
        return key, tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return key, text


if __name__ == "__main__":
    main()
