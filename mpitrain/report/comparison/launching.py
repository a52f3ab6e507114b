"""The runs of a comparison, by the site's launcher or simulated.

A cluster to simulate is read by `mpitrain simulate` alone, in a process of its own: reading it here would load MPI in
the process that starts the others.
"""

import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import cast

from mpitrain.api.clusters import find
from mpitrain.api.launching import PROGRAM, Relay, last_words, logged, on_ranks, start
from mpitrain.errors import BadInput, TrainingFailed, naming, some
from mpitrain.report import ingredients
from mpitrain.report.comparison.matrix import Element

KEPT = "cluster.toml"  # in the comparison's folder: a copy of the file of the cluster of all its runs
DEADLINE = 120.0  # seconds to read a configuration and a cluster
LONGEST = 2e6  # seconds for which `subprocess.run` can wait: it counts milliseconds in 32 bits


def launched(element: Element, launch: str) -> list[str]:
    """The whole command line of an element's run."""
    words = [*PROGRAM, "train", *element.words, "--continue", str(element.folder)]
    return on_ranks(launch, element.ranks, words)


def simulated(element: Element, cluster: str, last: tuple[str, ...] = ()) -> list[str]:
    """The whole command line of an element's simulated run; `last` replaces the words that start or continue it."""
    where = ["--cluster", cluster, "--ranks", str(element.ranks)]
    return [*PROGRAM, "simulate", *element.words, *where, *(last or ("--continue", str(element.folder)))]


def require_room(elements: list[Element], cluster: str) -> None:
    """Raise BadInput unless the cluster can be read and has room for every run."""
    words = simulated(max(elements, key=lambda element: element.ranks), cluster, ("--print-config",))
    carry_out(words, DEADLINE, f"--simulate {cluster}: not read", "--simulate")


def carry_out(words: list[str], deadline: float, late: str, failed: str) -> None:
    """Run a command to its end. Raises BadInput: `late` after `deadline` seconds, or `failed` with its last words;
    TrainingFailed if a signal ended it."""
    deadline = min(deadline, LONGEST)
    try:
        ended = subprocess.run(words, capture_output=True, timeout=deadline, check=False)
    except subprocess.TimeoutExpired:
        raise BadInput(f"{late} within {deadline:.0f} s") from None
    if ended.returncode:
        kind = TrainingFailed if ended.returncode < 0 else BadInput
        raise kind(f"{failed}: {last_words(ended.stderr, ended.returncode)}")


def require_same(out: Path, cluster: str) -> None:
    """Raise BadInput if `out` has runs that were made on another cluster than `cluster`, which is "" for real runs."""
    kept = out / KEPT
    if kept.exists() and not cluster:
        raise BadInput(f"{out}: its runs are simulated: give --simulate {kept}, or take another --out")
    if kept.exists() and kept.read_text(encoding="utf-8") != cluster_text(cluster):
        raise BadInput(f"{out}: its runs are of another cluster, {kept}; take another --out")
    if cluster and not kept.exists() and any((out / "runs").glob("*/metrics.jsonl")):
        raise BadInput(f"{out}: its runs are not simulated; take another --out")


def require_unchanged(elements: Collection[Element]) -> None:
    """Raise BadInput if a run that is finished, or would be continued, was trained with other code or shards."""
    begun = [each for each in elements if each.finished() or any((each.folder / "checkpoints").glob("*"))]
    configs = {each.configuration: each.loaded for each in begun}
    now = {name: ingredients.of_config(config) for name, config in configs.items()}
    for each in begun:
        if what := ingredients.changed(now[each.configuration], each.folder):
            raise BadInput(f"{each.folder}: was trained with another {what}; take another --out")


def cluster_text(cluster: str) -> str:
    """The content of the cluster's file. Raises BadInput naming it."""
    with naming(cluster), naming(f"{cluster}: not TOML", ValueError):
        return find(cluster, "--simulate").read_text(encoding="utf-8")


def run(element: Element, words: list[str], deadline: float, relay: Relay) -> str:
    """Run or resume an element by a command line. Returns "" or the reason why it is not finished. Its output goes to
    its log. Raises BadInput if there is no room for it, TrainingFailed if it was moved or deleted meanwhile."""
    with naming(element.log):
        element.log.parent.mkdir(parents=True, exist_ok=True)
        opened = element.log.open("a")
    with opened as log:
        began = log.tell()
        status = relay.wait(start(words, log), deadline)
    if status is None:
        return f"no end within {deadline:.0f} s"
    if status:
        return last_words(logged(element.log)[began:], status)
    left = element.read()
    results = left.results if left else {}
    if (ranks := results.get("ranks", element.training)) != element.training:
        other = "is the launcher that of another MPI than mpi4py's?"
        why = "others were lost; delete its folder to run it again" if results.get("lost_ranks") else other
        return f"ran on {some(cast(int, ranks), 'rank')}, not {element.training}: {why}"
    return "" if element.state() == "finished" else "left no summary"
