"""Runs of a comparison that are simulated: `mpitrain simulate`, each in a process of its own.

The cluster is only read there: reading it here would start MPI in the process that starts the others.
"""

import subprocess
import sys
from pathlib import Path

from mpitrain.errors import BadInput, naming
from mpitrain.files import write_whole
from mpitrain.report.comparison.launching import last_words
from mpitrain.report.comparison.matrix import Element
from mpitrain.simulation.cluster import find

KEPT = "cluster.toml"  # in the comparison's folder: that of all its runs
DEADLINE = 120.0  # seconds to read a configuration and a cluster


def command(element: Element, cluster: str) -> list[str]:
    """The whole command line of an element's run."""
    return [*_words(element, cluster), "--continue", str(element.folder)]


def require_room(elements: list[Element], cluster: str) -> None:
    """Raise BadInput unless the cluster can be read and has room for every run."""
    largest = max(elements, key=lambda element: element.ranks)
    words = [*_words(largest, cluster), "--print-config"]
    try:
        told = subprocess.run(words, capture_output=True, timeout=DEADLINE, check=False)
    except subprocess.TimeoutExpired:
        raise BadInput(f"--simulate {cluster}: not read within {DEADLINE:.0f} s") from None
    if told.returncode:
        raise BadInput(f"--simulate: {last_words(told.stderr) or f'exit status {told.returncode}'}")


def require_same(out: Path, cluster: str) -> None:
    """Raise BadInput if there are runs in the comparison's folder that are of another cluster, or real."""
    kept = out / KEPT
    if not cluster:
        if kept.exists():
            raise BadInput(f"{out}: its runs are simulated: give --simulate {kept}, or take another --out")
    elif kept.exists():
        if kept.read_text(encoding="utf-8") != _read(cluster):
            raise BadInput(f"{out}: its runs are of another cluster, {kept}; take another --out")
    elif any((out / "runs").glob("*/metrics.jsonl")):
        raise BadInput(f"{out}: its runs are not simulated; take another --out")


def keep(out: Path, cluster: str) -> None:
    """Write the cluster into the comparison's folder."""
    write_whole(out / KEPT, _read(cluster))


def _words(element: Element, cluster: str) -> list[str]:
    where = ["--cluster", cluster, "--ranks", str(element.ranks)]
    return [sys.executable, "-m", "mpitrain", "simulate", *element.words, *where]


def _read(cluster: str) -> str:
    with naming(cluster), naming(f"{cluster}: not TOML", ValueError):
        return find(cluster, "--simulate").read_text(encoding="utf-8")
