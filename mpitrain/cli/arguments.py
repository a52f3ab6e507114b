"""The arguments of commands that train, and of those that look at what a training has. Nothing here loads NumPy."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mpitrain.errors import BadInput
from mpitrain.start import Subparsers


@dataclass(frozen=True)
class TrainOptions:
    """The command line of `train`."""

    config: Path | None = None
    overrides: tuple[str, ...] = ()
    out: Path | None = None
    resume: Path | None = None
    continued: Path | None = None  # --continue: resume if there is an intact checkpoint, otherwise start
    replayed: Path | None = None  # the run folder whose record is replayed
    trust: bool = False  # execute the code that a resumed or replayed run folder of another user names
    new_code: bool = False  # execute the user's files as they are now, not as a resumed run was trained with them
    print_config: bool = False
    checkpoint: Path | None = None  # on rank 0: the verified checkpoint to resume from
    build: Callable[..., object] | None = None  # what Python was given instead of `model.import`
    phantom: bool = False  # simulate time and traffic alone
    density: float = 0.0  # of a phantom: entries sent of each gradient, by its length
    whole: str = ""  # the whole configuration, instead of a file and overrides


def add_train(commands: Subparsers) -> None:
    """Add `train`."""
    train = commands.add_parser("train", help="train a network (the default)")
    add_training_arguments(train)
    train.set_defaults(run="mpitrain.cli.launch:train")


def add_describe(commands: Subparsers) -> None:
    """Add `describe`."""
    parser = commands.add_parser("describe", help="a network's layers: shapes, parameters, operations")
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG.toml", help="default: the embedded digits")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key, as a.b=value")
    parser.add_argument(
        "--input", metavar="HxWxC", help="shape of an input, or WINDOWxFEATURES; default: the data's, or a preset's own"
    )
    parser.add_argument("--classes", type=int, metavar="N", help="default: as for --input")
    parser.set_defaults(run="mpitrain.cli.describe:run")


def add_info(commands: Subparsers) -> None:
    """Add `info`."""
    info = commands.add_parser("info", help="what was found: MPI, ranks, nodes, threads, devices")
    info.add_argument("--check", action="store_true", help="also measure links, storage and a gradient, and advise")
    info.add_argument("--data", type=Path, metavar="DIR", help="with --check: a shard folder to read from")
    info.add_argument("--out", type=Path, metavar="DIR", help="with --check: a folder to write to")
    info.set_defaults(run="mpitrain.cli.info:run")


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """What to train, with which settings, and where to."""
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG.toml", help="default: the embedded digits")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one key, as a.b=value"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--out", type=Path, metavar="DIR", help="the run folder; default: runs/<time>-<algorithm>")
    where.add_argument("--resume", type=Path, metavar="DIR", help="continue the run in this folder")
    where.add_argument(
        "--continue",
        type=Path,
        dest="continued",
        metavar="DIR",
        help="--resume DIR where it holds a whole checkpoint, else start in it: for jobs that are requeued",
    )
    add_code_arguments(parser)
    parser.add_argument("--print-config", action="store_true", help="print the resolved configuration and leave")


def add_code_arguments(parser: argparse.ArgumentParser) -> None:
    """Which code of the user's own is executed on account of a run folder."""
    parser.add_argument(
        "--trust", action="store_true", help="execute the code that a run folder names, though another user owns it"
    )
    parser.add_argument(
        "--new-code",
        action="store_true",
        help="execute the files of model.import and model.loss as they are now, not as the run was trained with them",
    )


def training_options(options: argparse.Namespace) -> TrainOptions:
    """What these arguments say. Raises BadInput."""
    if options.resume and options.config:
        raise BadInput("--resume takes the configuration of the run; change it by --set")
    for name in ("trust", "new_code"):
        if getattr(options, name) and not (options.resume or options.continued):
            raise BadInput(f"--{name.replace('_', '-')}: only where a run goes on: with --resume or --continue")
    return TrainOptions(
        options.config,
        tuple(options.set),
        options.out,
        options.resume,
        options.continued,
        print_config=options.print_config,
        trust=options.trust,
        new_code=options.new_code,
    )
