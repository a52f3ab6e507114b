"""A paper's cluster for a small network: what computing and messages cost keeps the paper's proportion."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import tomli_w

from mpitrain.api.clusters import find
from mpitrain.report.comparison.table import time_to
from mpitrain.report.runs import read_run
from mpitrain.simulation import cluster

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import launch

COMMON: dict[str, Any] = {"run.checkpoint_every": 0, "run.progress": "none", "run.threads": 1}
#: 31,304 parameters: 11 frames of 20 bins, 2 x 64, 200 classes.
SPEECH = COMMON | launch.SPEECH
PARAMETERS = {"speech": 31_304, "digits": 4_810}


@dataclass(frozen=True)
class Small:
    """A small network's minibatch that stands for one of a paper's: its gradient takes as long as that one's, and its
    messages, whose bytes are fewer, go as much more slowly."""

    paper: str  # a cluster's name
    parameters: int  # of the paper's network
    minibatch: int  # of the paper
    stands: int  # samples of the small network's minibatch
    own: int  # parameters of the small network

    def write(self, path: Path, faster: float = 1.0) -> Path:
        """Write the paper's cluster as a file for the small network, so that its times have the paper's proportions.

        Links are slower by the ratio of the numbers of parameters: a message of all parameters takes as long as the
        paper's. Then all are `faster` by that factor. A gradient of the small minibatch takes as long as one of the
        paper's.
        """
        of = cluster.read(find(self.paper))
        ratio, gradient = self.own / self.parameters, of.gradient
        slower = [
            msgspec.structs.replace(link, bandwidth=link.bandwidth * ratio * faster)
            for link in (of.within_node, of.between_nodes)
        ]
        line = msgspec.structs.replace(
            gradient, seconds_per_sample=gradient.seconds_per_sample * self.minibatch / self.stands
        )
        scaled = msgspec.structs.replace(
            of, measured=None, gradient=line, within_node=slower[0], between_nodes=slower[1]
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        known = {key: value for key, value in msgspec.to_builtins(scaled).items() if value is not None}
        path.write_text(tomli_w.dumps(known))
        return path


@dataclass(frozen=True)
class Runs:
    """Where the runs of a table go, one for each seed, and what they share; `fixed` overrides what a run says."""

    out: Path
    cluster: Path
    settings: dict[str, Any]
    fixed: dict[str, Any]
    config: Path | None = None
    seeds: tuple[int, ...] = (1, 2, 3)

    def run(self, name: str, ranks: int, more: dict[str, Any]) -> list[dict[str, Any] | None]:
        """The summary of each seed's run; None if it diverged."""
        return [launch.simulate(*self._given(name, seed, ranks, more)) for seed in self.seeds]

    def converged(self, name: str, ranks: int, more: dict[str, Any]) -> list[dict[str, Any]]:
        """As `run`, where no run may diverge."""
        return [launch.converged(*self._given(name, seed, ranks, more)) for seed in self.seeds]

    def _given(self, name: str, seed: int, ranks: int, more: dict[str, Any]) -> tuple[Any, ...]:
        settings = self.settings | {"training.seed": seed, "model.seed": seed} | more | self.fixed
        return self._folder(name, seed), ranks, self.cluster, settings, self.config

    def _folder(self, name: str, seed: int) -> Path:
        return self.out / f"seed-{seed}" / name

    def curves(self, name: str) -> list[list[dict[str, Any]]]:
        """The evaluations of each seed's run; none of one that diverged."""
        folders = [self._folder(name, seed) for seed in self.seeds]
        return [
            read_run(at, name).events("evaluate") if (at / "summary.json").exists() else []  # whole ones alone
            for at in folders
        ]

    def times(self, name: str, ranks: int, more: dict[str, Any], key: str, target: float) -> "Times":
        """Virtual seconds of each seed until the error is no more than `target`."""
        self.run(name, ranks, more)
        curves = self.curves(name)
        return Times([time_to(each, key, target) for each in curves], [least_error(each, key) for each in curves])

    def soonest(
        self, name: str, ranks: int, rates: tuple[float, ...], more: dict[str, Any], key: str, target: float
    ) -> tuple["Times", float]:
        """Of the rates: the times of the soonest, and the rate."""
        tried = {
            rate: self.times(f"{name}-{rate:g}", ranks, more | {"training.learning_rate": rate}, key, target)
            for rate in rates
        }
        best = min(rates, key=lambda rate: tried[rate].merit)
        return tried[best], best


@dataclass(frozen=True)
class Times:
    """Of each seed: the virtual seconds until an error, None if it never comes there, and the least error."""

    seconds: list[float | None]
    least: list[float]

    @property
    def merit(self) -> tuple[int, float, float]:
        """Less is better: how many seeds do not come there, the mean seconds of those that do, the mean least error."""
        there = [s for s in self.seconds if s is not None]
        return len(self.least) - len(there), fmean(there) if there else 0.0, fmean(self.least)

    def faster(self, base: "Times") -> list[float | None]:
        """How many times as soon as `base`, by seed."""
        pairs = zip(base.seconds, self.seconds, strict=True)
        return [one / own if one is not None and own is not None else None for one, own in pairs]


def spread(values: Sequence[float | None], form: str = "{:.1f}") -> str:
    """Mean, least and greatest of the seeds' values; how many have one, unless all do; a dash if none has."""
    there = [value for value in values if value is not None]
    if not there:
        return "–"
    of = "" if len(there) == len(values) else f"{len(there)} of {len(values)} seeds: "
    least, mean, greatest = (form.format(value) for value in (min(there), fmean(there), max(there)))
    return f"{of}{mean}" if len(there) == 1 or least == greatest else f"{of}{mean} ({least} to {greatest})"


def least_error(curve: list[dict[str, Any]], key: str) -> float:
    """Of all evaluations; 1 if there are none."""
    return min((float(record[key]) for record in curve), default=1.0)


def corpus(word: str) -> dict[str, Any]:
    """The settings of a prepared corpus of speech."""
    return SPEECH | {"data.path": str(Path(word).resolve())}


def overrides(words: list[str]) -> dict[str, Any]:
    """KEY=VALUE, with values as JSON."""
    return {key: json.loads(value) for key, _, value in (word.partition("=") for word in words)}
