"""What is to be trained, and where: the same from the command line, in a simulation and in Python."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from mpitrain.errors import BadInput
from mpitrain.models.model import Model


@dataclass(frozen=True)
class TrainOptions:
    """What `train` is told."""

    config: Path | None = None
    overrides: tuple[str, ...] = ()
    out: Path | None = None
    resume: Path | None = None
    continued: Path | None = None  # --continue: resume if there is an intact checkpoint, otherwise start
    replayed: Path | None = None  # the run folder whose record is replayed
    trust: bool = False  # execute the code that a resumed or replayed run folder of another user names
    new_code: bool = False  # execute the user's files as they are now, not as a resumed run was trained with them
    print_config: bool = False
    checkpoint: Path | None = None  # the verified checkpoint to resume from
    build: Callable[..., object] | None = None  # what Python was given instead of `model.import`
    scale: Callable[[Model], tuple[float, str]] | None = None  # of a simulation: how long a sample takes, and a line
    phantom: bool = False  # simulate time and traffic alone
    density: float = 0.0  # of a phantom: entries sent of each gradient, by its length
    least_ranks: int = 0  # where a training goes on without ranks that were lost: with as many at least,
    ranks: int = 0  # and with as many at the most, the others being spares
    spare: bool = False  # whether this rank was one of those before
    whole: str = ""  # the whole configuration, instead of a file and overrides


def from_arguments(given: argparse.Namespace) -> TrainOptions:
    """What the arguments of `train` say. Raises BadInput."""
    same = {name: getattr(given, name) for name in ("config", "out", "resume", "continued", "trust", "new_code")}
    return consistent(TrainOptions(overrides=tuple(given.set), print_config=given.print_config, **same))


def consistent(options: TrainOptions, python: bool = False) -> TrainOptions:
    """The options, if they fit each other. Raises BadInput naming one as the command line writes it, or Python."""

    def written(name: str) -> str:
        return name if python else f"--{name.replace('_', '-')}"

    if options.resume and options.config:
        raise BadInput(f"{written('resume')}: the run has its configuration; single keys change it, not a file")
    for name in ("trust", "new_code"):
        if getattr(options, name) and not (options.resume or options.continued):
            how = "with resume" if python else "with --resume or --continue"
            raise BadInput(f"{written(name)}: only where a run goes on: {how}")
    return options


def folder_of(argument: str, value: object) -> Path | None:
    """The folder that Python names, if any. Raises BadInput naming the argument if it is no path."""
    if not isinstance(value, str | PathLike | None):
        raise BadInput(f"{argument} = {value!r}: expected the path of a folder")
    return None if value is None else Path(value)
