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
    parser.add_argument("--print-config", action="store_true", help="print the resolved configuration and leave")


def training_options(options: argparse.Namespace) -> "TrainOptions":
    """What these arguments say. Raises BadInput."""
    from mpitrain.cli.setup import TrainOptions

    if options.resume and options.config:
        raise BadInput("--resume takes the configuration of the run; change it by --set")
    return TrainOptions(
        options.config,
        tuple(options.set),
        options.out,
        options.resume,
        options.continued,
        options.print_config,
    )
