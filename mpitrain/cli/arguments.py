"""The arguments of commands that train."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mpitrain.errors import BadInput

if TYPE_CHECKING:
    from mpitrain.cli.setup import TrainOptions


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


def training_options(options: argparse.Namespace) -> "TrainOptions":
    """What these arguments say. Raises BadInput."""
    from mpitrain.cli.setup import TrainOptions

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
