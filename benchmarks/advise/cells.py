"""Is what `advise` chooses the best of what one would have tried, and does it take as long as it says?

    python benchmarks/advise/cells.py glyphs|bytes shared|link|half OUT [--budget T] [--points N] [--seeds N]
        [--target E] [--most S] [--set KEY=VALUE]

Two ranks on one of three machines: one host; two emulated hosts with 100 Mbit/s between them (as root, see twohosts/);
one host on which the last rank takes twice as long for a gradient (halved.py). `calibrate` describes it and `advise`
chooses for it, from a simulation. Then the configuration itself and as many others as make `--points`, drawn by another
seed from each algorithm's defaults and three points of its space, train in earnest, and of the best two and the advised
one as many seeds as are asked for. Printed are the seconds to the target and, of the advised one, the seconds that were
predicted. Evaluations take no time. Runs that are there are not repeated. Of those that would train for longer than
`--most` seconds, by what their beginning took, the number of epochs is less.
"""

import argparse
import math
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import tomli_w

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "twohosts"))
from launch import attempt, table
from twohosts import Link

from mpitrain.algorithms import ALGORITHMS
from mpitrain.config import read_toml, with_keys
from mpitrain.report.advice.candidates import Candidate, Candidates
from mpitrain.report.advice.trials import Outcome, Trial, outcome
from mpitrain.report.benchmarks.known import NAMES, TARGETS, base_of, require_data
from mpitrain.report.comparison.table import time_to

RANKS, EVALUATIONS, RATE = 2, 25, "100mbit"
SLOW = "\n[[slow]]\nnode = 1\nfactor = 2.0\n"
ADVISED = "advised"


class Cell:
    """One benchmark on one machine, in a folder."""

    def __init__(self, words: argparse.Namespace, python: Sequence[str], script: Sequence[str]) -> None:
        require_data(words.name, words.set)
        self._words, self._program, self._plain = words, [*python, *script], [*python, "-m", "mpitrain"]
        base = base_of(words.name, words.set)
        self.table = with_keys(read_toml(base.path), [*base.settings, *words.set])
        self.config, self.cluster = words.out / "net.toml", words.out / "cluster.toml"
        words.out.mkdir(parents=True, exist_ok=True)
        self.config.write_text(tomli_w.dumps(self.table))
        self.target = words.target or float(TARGETS[words.name])
        self._samples = math.inf  # of an epoch, once a training has told it

    def calibrate(self) -> None:
        """Describe the machine, where no rank takes twice as long yet."""
        if self.cluster.exists():
            return
        self._call([*self._plain, "calibrate", str(self.cluster), str(self.config)])
        if self._words.machine == "half":  # slow is a node: two of them, as near to each other as these ranks
            text = re.sub(r"(?m)^nodes = .*", "nodes = 2", self.cluster.read_text())
            text = re.sub(r"(?m)^(ranks_per_node|cores_per_node) = .*", r"\1 = 1", text)
            within = re.search(r"(?ms)^\[within_node\]\n(.*?)(?=^\[|\Z)", text)
            assert within is not None
            text = re.sub(r"(?ms)^\[between_nodes\]\n.*?(?=^\[|\Z)", "", text)
            self.cluster.write_text(f"{text}\n[between_nodes]\n{within[1]}{SLOW}")

    def advised(self) -> Candidate:
        """What `advise` chooses."""
        chosen = self._words.out / "advice" / "advice.toml"
        if not chosen.exists():
            where = ["--cluster", str(self.cluster), "--ranks", str(RANKS), "--out", str(chosen.parent)]
            asked = ["--target-error", f"{self.target:g}", "--budget", self._words.budget]
            self._call([sys.executable, "-m", "mpitrain", "advise", str(self.config), *where, *asked])
        print(re.sub(r"(?m)^(?!#).*\n|^# ", "", chosen.read_text()), flush=True)
        return Candidate(0, ADVISED, read_toml(chosen))

    def predicted(self) -> str:
        """The mean over seeds of the time that it says, and the span; "≤" where it is shorter."""
        told = (self._words.out / "advice" / "advice.toml").read_text().splitlines()[1]
        return told.partition(": ")[2]

    def points(self) -> list[Candidate]:
        """What one would have tried."""
        candidates, random = Candidates(self.table, set(), self._words.draw), np.random.default_rng(self._words.draw)
        if candidates.first.config.model.import_:  # a module, which cannot be divided
            candidates.names = [name for name in candidates.names if not ALGORITHMS[name].divides]
        drawn = [*islice(candidates.drawn(), 4 * len(candidates.names))]
        chosen = sorted(random.choice(len(drawn), self._words.points - 1, replace=False).tolist())
        return [candidates.first, *(replace(drawn[number], number=number + 1) for number in chosen)]

    def seconds(self, number: int, candidate: Candidate, seed: int) -> float:
        """To the target, in earnest; infinity where it is not reached."""
        epochs = candidate.table["training"]["epochs"]
        if candidate.algorithm != ADVISED:
            epochs *= self._words.longer
            if self._words.most < math.inf and (tried := self._tried(number, candidate, seed, epochs)):
                self._samples = tried.samples_of_epoch
                epochs = min(epochs, self._words.most * tried.speed / self._samples)
        found = self._trained(number, candidate, seed, epochs)
        seconds = time_to(found.curve, "merit", self.target) if found else None
        return math.inf if seconds is None else seconds

    def _tried(self, number: int, candidate: Candidate, seed: int, epochs: float) -> Outcome | None:
        """What came of a fiftieth of a training, or of two of its periods if these are more."""
        period = getattr(candidate.config.algorithm, "tau", 1)
        periods = 2 * period * candidate.config.training.minibatch * RANKS / self._samples
        return self._trained(number, candidate, seed, min(max(epochs / 50, periods), epochs), "-short")

    def _trained(self, number: int, candidate: Candidate, seed: int, epochs: float, what: str = "") -> Outcome | None:
        """What came of a training; None where it diverged."""
        keys = {"training.epochs": round(epochs, 6), "training.seed": seed, "model.seed": seed}
        keys |= {"run.evaluate_every": epochs / EVALUATIONS if not what else 0, "run.evaluate_late": True}
        run = self._words.out / f"{number:02d}-{candidate.algorithm}-s{seed}{what}"
        path = run.with_suffix(".toml")
        path.write_text(tomli_w.dumps(candidate.table))
        keys |= {"run.progress": "none", "run.checkpoint_every": 0}
        if attempt(run, RANKS, keys, path, self._program) is None:
            return None
        return outcome(Trial(candidate, epochs, seed), run, run.with_suffix(".log"), 0, 0.0)

    def _call(self, command: list[str]) -> None:
        print(f"{' '.join(command[-6:])} ...", file=sys.stderr, flush=True)
        if status := subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode:
            sys.exit(f"exit status {status}")


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("machine", choices=("shared", "link", "half"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--points", type=int, default=12)
    parser.add_argument("--draw", type=int, default=7, help="the seed that draws the points")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--longer", type=float, default=1.5, help="times the samples of the configuration")
    parser.add_argument("--target", type=float, default=0.0)
    parser.add_argument("--most", type=float, default=math.inf)
    parser.add_argument("--set", action="append", default=[])
    words = parser.parse_args()
    with ExitStack() as stack:
        mpirun = [str(Path(sys.executable).with_name("mpirun")), "-n", str(RANKS)]
        begin = stack.enter_context(Link(RATE)).launch([], RANKS) if words.machine == "link" else mpirun
        halved = str(Path(__file__).resolve().with_name("halved.py"))
        script = [halved] if words.machine == "half" else ["-m", "mpitrain"]
        cell = Cell(words, [*begin, sys.executable], script)
        cell.calibrate()
        advised, points = cell.advised(), cell.points()
        once = {number: cell.seconds(number, each, 1) for number, each in enumerate(points, 1)}
        best = sorted(once, key=lambda number: once[number])[:2]
        rows = []
        for number, each in [(0, advised), *((number, points[number - 1]) for number in best)]:
            times = [cell.seconds(number, each, seed) for seed in range(1, words.seeds + 1)]
            said = f"{statistics.median(times):.2f} ({', '.join(f'{each:.2f}' for each in times)})"
            rows.append([each.shown if number else ADVISED, said])
        rows += [[each.shown, f"{once[number]:.2f}"] for number, each in enumerate(points, 1) if number not in best]
    print(table([f"{words.name}, {words.machine}", f"s to {cell.target:g}"], rows))
    print(f"\npredicted: {cell.predicted()}")


if __name__ == "__main__":
    main()
