"""The benchmarks by name: their configurations, data and errors to reach."""

from pathlib import Path
from typing import NamedTuple

from mpitrain.files import shipped
from mpitrain.report.benchmarks.making import HERE, make

FOLDER = Path("runs/benchmarks")  # of the data, unless data.path is given
TARGETS = {"bytes": "2.5", "glyphs": "0.3", "speech": "0.4"}  # which one worker reaches in about half its time
NAMES = tuple(TARGETS)


class Base(NamedTuple):
    """What all configurations of a comparison begin with: a TOML file and overrides, and an optimizer with its learning
    rate where the algorithm takes one and no other is named."""

    path: Path
    settings: tuple[str, ...] = ()
    optimizer: str = ""
    rate: str = ""


def base_of(name: str, settings: list[str]) -> Base:
    """The configuration of a benchmark, on its own data unless `settings` have a data.path."""
    own = [] if _given(settings) else [f"data.path={(FOLDER / name).absolute()}"]
    if name != "bytes":
        return Base(HERE / f"{name}.toml", tuple(own))
    own.append(f"model.import={shipped('examples') / 'transformer' / 'transformer.py'}:build")
    return Base(HERE / "bytes.toml", tuple(own), "adamw", "4e-3")


def require_data(name: str, settings: list[str]) -> None:
    """Make a benchmark's data where they are not there, unless `settings` have a data.path. Raises BadInput."""
    if not _given(settings):
        make(name, FOLDER / name)


def _given(settings: list[str]) -> bool:
    return any(setting.partition("=")[0].strip() == "data.path" for setting in settings)
