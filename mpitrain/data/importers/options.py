"""The options that importers share."""

import argparse
from collections.abc import Callable
from pathlib import Path

from mpitrain.data.importers.plan import CorpusPlan
from mpitrain.data.validation import CLASSES
from mpitrain.errors import BadInput


def add_common(parser: argparse.ArgumentParser, planning: Callable[[argparse.Namespace], CorpusPlan]) -> None:
    """Add the arguments that all importers share, after their own: the folder and the number of processes."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder for the shards")
    parser.add_argument(
        "--jobs", type=int, help="number of processes; default: the rank's share of the cores it may use"
    )
    parser.set_defaults(run="mpitrain.data.importers.importing:run", planning=planning)


def require_least(options: argparse.Namespace, **least: int) -> None:
    """Raise BadInput naming an option that is smaller than this, or --classes if a corpus may not have so many."""
    for name, value in least.items():
        given = getattr(options, name)
        if given is not None and given < value:
            raise BadInput(f"--{name} {given}: at least {value}")
    if getattr(options, "classes", None) is not None and not 1 <= options.classes <= CLASSES:
        raise BadInput(f"--classes {options.classes}: at least 1, at most {CLASSES:,}")
