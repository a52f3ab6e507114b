"""A paper's cluster for a small network: what computing and messages cost keeps the paper's proportion."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from mpitrain.report.comparison.table import time_to
from mpitrain.report.runs import read_run
from mpitrain.simulation import cluster
from mpitrain.simulation.clusters import find

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import launch

COMMON: dict[str, Any] = {"run.checkpoint_every": 0, "run.progress": "none", "run.threads": 1, "training.seed": 1}
#: 31,304 parameters: 11 frames of 20 bins, 2 x 64, 200 classes.
SPEECH = COMMON | launch.SPEECH | {"model.seed": 1}
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
        paper's. Links between nodes are then `faster` by that factor. A gradient of the small minibatch takes as long
        as one of the paper's.
        """
        of = cluster.read(find(self.paper))
        ratio, gradient = self.own / self.parameters, of.gradient
        slower = [
            msgspec.structs.replace(link, bandwidth=link.bandwidth * ratio * more)
            for link, more in ((of.within_node, 1.0), (of.between_nodes, faster))
        ]
        line = msgspec.structs.replace(
            gradient, seconds_per_sample=gradient.seconds_per_sample * self.minibatch / self.stands
        )
        scaled = msgspec.structs.replace(of, gradient=line, within_node=slower[0], between_nodes=slower[1])
        path.parent.mkdir(parents=True, exist_ok=True)
        known = {key: value for key, value in msgspec.to_builtins(scaled).items() if value is not None}
        path.write_text(tomli_w.dumps(known))
        return path


@dataclass(frozen=True)
class Runs:
    """Where the runs of a table go, and what they share; `fixed` overrides what a run says itself."""

    out: Path
    cluster: Path
    settings: dict[str, Any]
    fixed: dict[str, Any]
    config: Path | None = None

    def run(self, name: str, ranks: int, more: dict[str, Any]) -> dict[str, Any] | None:
        """A run's summary; None if it diverged."""
        return launch.simulate(self.out / name, ranks, self.cluster, self.settings | more | self.fixed, self.config)

    def converged(self, name: str, ranks: int, more: dict[str, Any]) -> dict[str, Any]:
        """As `run`, where no run may diverge."""
        return launch.converged(self.out / name, ranks, self.cluster, self.settings | more | self.fixed, self.config)

    def curve(self, name: str) -> list[dict[str, Any]]:
        """The evaluations of a run that is there."""
        return read_run(self.out / name, name).events("evaluate")

    def seconds_to(self, name: str, ranks: int, more: dict[str, Any], key: str, target: float) -> float | None:
        """Virtual seconds until the error is no more than `target`; None if it never is."""
        return None if self.run(name, ranks, more) is None else time_to(self.curve(name), key, target)

    def soonest(
        self, name: str, ranks: int, rates: tuple[float, ...], more: dict[str, Any], key: str, target: float
    ) -> tuple[float | None, float, float]:
        """Of the rates: the seconds of the soonest at the target or, if none comes there, of the least error; the rate;
        the least error at that rate."""
        tried = []
        for rate in rates:
            at = f"{name}-{rate:g}"
            seconds = self.seconds_to(at, ranks, more | {"training.learning_rate": rate}, key, target)
            least = least_error(self.curve(at), key) if (self.out / at / "summary.json").exists() else 1.0
            tried.append((float("inf") if seconds is None else seconds, least, rate))
        seconds, least, rate = min(tried)
        return (None if seconds == float("inf") else seconds), rate, least


def least_error(curve: list[dict[str, Any]], key: str) -> float:
    """Of all evaluations."""
    return min(float(record[key]) for record in curve)


def corpus(word: str) -> dict[str, Any]:
    """The settings of a prepared corpus of speech."""
    return SPEECH | {"data.path": str(Path(word).resolve())}


def overrides(words: list[str]) -> dict[str, Any]:
    """KEY=VALUE, with values as JSON."""
    return {key: json.loads(value) for key, _, value in (word.partition("=") for word in words)}
