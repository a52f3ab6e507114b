"""Search for faults where a training goes on without ranks (`run.lost_ranks = "continue"`).

    python -m tests.search lost [--seeds A B]

Every seed is a training on 2 to 5 simulated ranks (`mortals.py`), of which one to three die or stand still: at a call
of MPI, or at any time between calls; at the start, in training, while the others recover, at the end. What must hold:

- The training ends on all ranks that live, with every sample, and with equal replicas.
- Where it goes on, all ranks have the same parameters, and know of the same samples that they are trained on.
- These samples are in the parameters. Each sample's "gradient" is a number at a place of its own, so that the
  parameters show it. Rules that only add, add it exactly once; for the others there are bounds (`losses.py`).
- All others are trained on from there, each once; and where a master or a replica is left, none twice.
- A centre is its start and whole moves of its workers, all that they know to have come.
"""

import argparse
import contextlib
import io
import json
import tempfile
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import xxhash
from threadpoolctl import threadpool_limits

from mpitrain.api.options import TrainOptions
from mpitrain.cli.train import outlasting
from mpitrain.flat import Array
from mpitrain.signals import Stop
from mpitrain.simulation.job import Aborted
from mpitrain.simulation.messages import ClusterNetwork, Link

from . import checkpoints, in_pieces
from .losses import ABOUT, ANY, COMMON, DEADLINE, LARGEST, ONCE, RATE, SINGLE, Case, case
from .mortals import Mortals
from .witnessed import Start, Watch, watching


@dataclass
class Told:
    """What a training came to."""

    watch: Watch
    job: Mortals
    statuses: list[int]
    said: str
    error: str = ""

    @property
    def met(self) -> list[str]:
        """What came up."""
        lost, starts = len(self.job.dead), len(self.watch.starts)
        ended = ["ended by an early loss"] if self.error else []
        return [*ended, *[f"{lost} lost"] * (lost > 0), *[f"{starts - 1} times gone on"] * (starts > 1)]


def trained(what: Case, seed: int, run: Path, resume: bool = False, stop: Stop | None = None) -> Told:
    """A training in this run folder."""
    random = np.random.default_rng((seed, 1))

    def seconds(rank: int, samples: float) -> float:
        return 1e-4 * samples * float(random.pareto(1.2) + 0.1)

    def work(rank: int, kind: str, amount: float) -> float:
        return float(random.exponential(what.updates)) if what.updates else 0.0

    network = ClusterNetwork(Link(1e-4, 1e8), jitter=what.jitter, seed=seed)
    job = Mortals(what.ranks, seed, what.slowness, DEADLINE, network=network, seconds=seconds, work=work)
    options = TrainOptions(resume=run) if resume else TrainOptions(overrides=(*COMMON, *what.keys), out=run)
    told, said = Told(Watch(what, job), job, [], ""), io.StringIO()
    with watching(told.watch), in_pieces(60), threadpool_limits(1), contextlib.redirect_stderr(said):
        try:
            told.statuses = job.run(lambda transport: outlasting(transport, lambda: options, stop or Stop()))
        except Aborted as error:
            told.error = str(error)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[-3:]
            told.error = f"{type(error).__name__}: {error} ({'; '.join(f'{f.name}:{f.lineno}' for f in frames)})"
    told.said = said.getvalue()
    return told


# ---- what must hold


def fault(seed: int, folder: Path) -> str:
    """What is wrong with the training of a seed, which writes to this folder; "" for nothing."""
    return "; ".join(wrong(case(seed), folder / "run", trained(case(seed), seed, folder / "run")))


def wrong(what: Case, run: Path, told: Told) -> list[str]:
    """The same."""
    watch, job = told.watch, told.job
    training = what.ranks - sum(key.startswith("run.spares") for key in what.keys)
    if told.error:
        if "none is left that has trained" in told.said:  # but spares, who cannot know what the others came to
            return [] if job.dead.keys() | set(job.results) >= set(range(training)) else [told.said]
        ended = "ended the job" in told.error or "the start of the program" in told.error
        early = job.struck and len(watch.begun) < training and ended
        return [] if early else [f"{told.error}: {told.said[-700:]}"]
    if set(told.statuses) != {0}:
        return [f"exit statuses {told.statuses}: {told.said[-700:]}"]
    summary = json.loads((run / "summary.json").read_text())
    found = [*watch.wrong[:1]]
    if summary["exit_reason"] != "finished" or summary["samples"] != what.total:
        found.append(f"{summary['exit_reason']} after {summary['samples']} samples")
    if not summary.get("replicas_identical", True):
        found.append("replicas differ")
    for numbers, left in checkpoints(run):
        once = not left or (max(left.values()) == 1 and max(left) < numbers["position"])
        if not (once and numbers["trained"] + left.total() == numbers["position"]):
            found.append(f"a checkpoint has {numbers} and hands {left.total()} samples out again")
    starts = [*watch.starts.values()]
    for number, start in enumerate(starts):
        found += [f"start {number}: {text}" for text in _of_start(what, watch, start)]
    again, lost = (starts[-1].loaded - starts[-1].due).total(), (starts[-1].due - starts[-1].loaded).total()
    found += [f"at the end {again} samples again, {lost} lost"] if again or lost else []
    found += _content(what, watch, _at_the_end(what, run), Counter(range(what.total)), "at the end")
    return found + _repeated(what, starts, 0 in job.dead)


def _repeated(what: Case, starts: list[Start], served: bool) -> list[str]:
    """Whether more is done again after one loss than was at hand, where a replica or the server is left."""
    keeps = what.way.startswith("allreduce") or (what.way in SINGLE and not served)
    if not keeps or len(what.losses) > 1 or len(starts) < 2 or len(starts[0].queues) < starts[0].ranks:
        return []
    before, after = starts[0], starts[1]
    again = ((before.trained | before.loaded) - after.trained).total()
    minibatch = max(what.minibatch, LARGEST) if any("stages" in key for key in what.keys) else what.minibatch
    return [f"{again} samples are trained on again"] if again > before.ranks * minibatch else []


def _of_start(what: Case, watch: Watch, start: Start) -> list[str]:
    """What is wrong with what the ranks of a start begin with, and load."""
    found = []
    hashes = {xxhash.xxh3_64_hexdigest(each) for each in start.parameters.values()}
    queues = {(queue.position, tuple(queue.returned)) for queue in start.queues.values()}
    if len(hashes) > 1 or len(queues) > 1:
        found.append(f"ranks begin with {len(hashes)} parameters and {len(queues)} queues")
    if start.loaded - start.due:
        found.append(f"{(start.loaded - start.due).total()} samples are loaded that are not due")
    theta = next(iter(start.parameters.values()))
    return found + _content(what, watch, theta, start.trained, "", start is next(iter(watch.starts.values())))


def _at_the_end(what: Case, run: Path) -> Array:
    """The parameters, with what peers have not sent."""
    newest = sorted(run.glob("checkpoints/[0-9]*/state.h5"))[-1]
    with h5py.File(newest) as file:
        theta = np.array(file["theta"][:])
    for piece in newest.parent.glob("rank-*.h5") if what.way.startswith("sparse-delta") else ():
        with h5py.File(piece) as file:
            theta -= file["residual"][:] * RATE / what.minibatch
    return theta


def _content(
    what: Case, watch: Watch, theta: Array, samples: Counter[int], when: str, first: bool = False
) -> list[str]:
    """Whether parameters hold these samples."""
    assert watch.first_theta is not None
    found = (watch.first_theta - theta) / RATE
    times = np.bincount([position % theta.size for position in samples.elements()], minlength=theta.size)
    (least, most), peers = what.adds, what.way.startswith("sparse-delta")
    if peers and what.adds in (ONCE, ABOUT) and not (when and not watch.job.dead):
        least = 0.0  # what a lost rank had not sent is lost, and what others have not sent is not here
    if what.way.startswith("downpour") and 0 in watch.job.dead:
        least = 0.0  # with other workers, a checkpoint's updates that were not pushed are lost
    with np.errstate(invalid="ignore"):
        low, high = np.nan_to_num(least * times, nan=0.0), np.nan_to_num(most * times, nan=0.0)
    outside = np.flatnonzero((found < low - 1e-4) | (found > high + 1e-4))
    if what.adds == ANY or not outside.size:
        return []
    at = outside[0]
    return [f"{when} {outside.size} samples are not in the parameters as they should: {found[at]} for {times[at]}"]


def main(words: list[str]) -> int:
    """One seed after another; those that fail, and how often each way of training was tried."""
    parser = argparse.ArgumentParser(
        "python -m tests.search lost", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 1000), metavar=("A", "B"))
    parser.add_argument("--every", type=int, default=1, metavar="N")
    options = parser.parse_args(words)
    tried, failed, met = Counter[str](), Counter[str](), Counter[str]()
    for seed in range(*options.seeds, options.every):
        what = case(seed)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            told = trained(what, seed, Path(folder) / "run")
            said = "; ".join(wrong(what, Path(folder) / "run", told))
        tried[what.way] += 1
        failed[what.way] += bool(said)
        met.update(told.met)
        if said:
            print(f"seed {seed}: {what}:\n    {said[:900]}", flush=True)
        if seed % 100 == 99:
            print(f"{seed + 1}: {failed.total()} failed of {tried.total()}, {dict(met)}", flush=True)
    for way, count in tried.items():
        print(f"{way}: {count} seeds, {failed[way]} failed")
    return int(bool(failed.total()))
