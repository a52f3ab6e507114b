"""The table of `compare --paired`: each row's figure of merit against that of a base, on the same test samples.

The difference of two trainings has a paired bootstrap: blocks of neighbouring samples are drawn anew, the same ones for
both (Efron & Tibshirani, An Introduction to the Bootstrap, 1993, §8.6 for blocks); where there are several seeds, each
side's are drawn anew, too, and their deviations from the mean multiplied by √(n/(n − 1)), as a sample of n varies less
about its own mean.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpitrain.api.launching import PROGRAM
from mpitrain.errors import BadInput, naming, printable
from mpitrain.files import Record, read_text
from mpitrain.flat import Array
from mpitrain.monitoring.records import shown
from mpitrain.report.comparison.launching import carry_out
from mpitrain.report.comparison.table import Row
from mpitrain.sampling.rng import stream

KEPT = "blocks.json"  # in a run's folder
DRAWS, TOGETHER = 10_000, 500  # bootstrap draws, and how many of them are computed at a time
COVERED = 95.0  # per cent of the draws


@dataclass(frozen=True)
class BlockSums:
    """The sums [blocks] of a figure of merit over the blocks of a test part, and their numbers of samples."""

    sums: Array
    samples: Array

    @property
    def mean(self) -> float:
        """The figure on the whole part."""
        return float(self.sums.sum() / self.samples.sum())


@dataclass(frozen=True)
class Difference:
    """`mean`: a row's figure minus that of the `base`; COVERED per cent of the draws are between `low` and `high`."""

    base: float
    mean: float
    low: float
    high: float

    @property
    def relative(self) -> tuple[float, float, float]:
        """`mean`, `low` and `high` as fractions of the base's figure, which may be below 0."""
        of = abs(self.base)
        return self.mean / of, self.low / of, self.high / of


Pair = tuple[Row, Row, Difference]  #: a row, the base that it is compared with, and their difference


def evaluate(folders: Sequence[Path], deadline: float) -> None:
    """Let `mpitrain evaluate` write the blocks of runs that have none yet. Raises BadInput naming the run."""
    for folder in folders:
        if not (folder / KEPT).exists():
            words = [*PROGRAM, "evaluate", str(folder), "--blocks", str(folder / KEPT)]
            carry_out(words, deadline, f"{folder}: not evaluated", f"{folder}: cannot be evaluated")


def differences(rows: Sequence[Row], test_set: str, baseline: str) -> list[Pair]:
    """Each row with finished runs, the base, and their difference. The base is the first such row of the baseline, or
    else of all. Raises BadInput naming a run that was tested on other samples."""
    rows = [row for row in rows if row.runs]
    base = next((row for row in rows if row.configuration == (baseline or row.configuration)), None)
    if base is None:
        return []
    found = {id(row): [_read(run.folder / KEPT, test_set, row.merit) for run in row.runs] for row in rows}
    told = found[id(base)][0].samples
    for row in rows:
        for run, blocks in zip(row.runs, found[id(row)], strict=True):
            if not np.array_equal(blocks.samples, told):
                raise BadInput(f"{run.folder}: was tested on other samples than {base.runs[0].folder}")
    return [(row, base, difference(found[id(base)], found[id(row)])) for row in rows if row is not base]


def _read(path: Path, test_set: str, merit: str) -> BlockSums:
    with naming(path), naming(f"{path}: not the blocks of an evaluation", ValueError, KeyError, TypeError):
        found = dict(json.loads(read_text(path)))
        parts = {part.replace("-", "_"): sums for part, sums in found.items()}  # as in the summary's keys
        wanted = test_set.replace("-", "_")
        key = wanted if wanted in parts else next((part for part in parts if part.startswith(wanted)), wanted)
        return BlockSums(*(np.array(parts[key][name], np.float64) for name in (merit, "samples")))


def cells(found: Sequence[Pair]) -> tuple[list[str], list[list[str]]]:
    """The header and the lines of the table as text."""
    header = ["configuration", "workers", "against", f"difference ({COVERED:.0f}% of draws)", "relative"]
    lines = []
    for row, base, told in found:
        form = "+z.2%" if row.merit == "error" else "+z.4f"  # z: never −0
        spans = [_span(form, told.mean, told.low, told.high), _span("+z.2%", *told.relative) if told.base else "–"]
        against = f"{printable(base.configuration)}, {base.workers}"
        lines.append([printable(row.configuration), str(row.workers), against, *spans])
    return header, lines


def _span(form: str, mean: float, low: float, high: float) -> str:
    return f"{mean:{form}} ({low:{form}} to {high:{form}})"


def note(rows: Sequence[Row], test_set: str) -> str:
    """What the table's numbers mean."""
    return (
        f"Differences of the {test_set} {shown(rows[0].merit)}, less is better: blocks of the same test samples, and "
        f"each side's seeds, drawn anew {DRAWS:,} times. relative: as a share of the base's."
    )


def values(found: Sequence[Pair]) -> list[Record]:
    """Every number, for compare.json."""
    return [
        {
            "configuration": printable(row.configuration),
            "workers": row.workers,
            "against": [printable(base.configuration), base.workers],
            "base": told.base,
            "difference": [told.mean, told.low, told.high],
        }
        for row, base, told in found
    ]


def difference(base: Sequence[BlockSums], other: Sequence[BlockSums]) -> Difference:
    """The difference between the means over seeds of two trainings' figures. All have the same blocks of samples."""
    rng, samples = stream(1, "bootstrap"), base[0].samples
    each = np.mean([run.sums for run in other], 0) - np.mean([run.sums for run in base], 0)
    drawn = np.empty(DRAWS)
    for start in range(0, DRAWS, TOGETHER):
        counts = rng.multinomial(len(each), np.full(len(each), 1 / len(each)), TOGETHER)
        drawn[start : start + TOGETHER] = counts @ each / (counts @ samples)
    drawn += _of_seeds(other, rng) - _of_seeds(base, rng)
    low, high = np.percentile(drawn, [50 - COVERED / 2, 50 + COVERED / 2])
    begun = float(np.mean([run.mean for run in base]))
    return Difference(begun, float(each.sum() / samples.sum()), float(low), float(high))


def _of_seeds(runs: Sequence[BlockSums], rng: np.random.Generator) -> Array:
    """By how much the mean over seeds drawn anew differs from the mean over all seeds, for each draw: [DRAWS]."""
    n, means = len(runs), np.array([run.mean for run in runs])
    if n == 1:
        return np.zeros(DRAWS)
    drawn = (means - means.mean())[rng.integers(n, size=(DRAWS, n))].mean(1)
    return np.asarray(drawn * np.sqrt(n / (n - 1)))
