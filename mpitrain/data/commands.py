"""The command line of the data: `prepare SOURCE ... DIR` and `check DIR`."""

import argparse
from pathlib import Path
from typing import Any

Subparsers = Any  # argparse keeps the type of add_subparsers() to itself


def add_prepare_parser(commands: Subparsers) -> None:
    """Add `prepare` with one subcommand a source."""
    prepare = commands.add_parser("prepare", help="write a shard folder from a source")
    sources = prepare.add_subparsers(metavar="SOURCE", required=True)
    digits = sources.add_parser("digits", help="the embedded handwritten digits")
    digits.add_argument("folder", type=Path, metavar="DIR", help="where the shards go")
    digits.set_defaults(run=_digits)


def add_check_parser(commands: Subparsers) -> None:
    """Add `check`."""
    check = commands.add_parser("check", help="verify every shard of a folder")
    check.add_argument("folder", type=Path, metavar="DIR", help="a shard folder")
    check.set_defaults(run=_check)


def _digits(options: argparse.Namespace) -> int:
    from mpitrain.data.digits import prepare_digits

    prepare_digits(options.folder)
    return _check(options)


def _check(options: argparse.Namespace) -> int:
    from mpitrain.data.check import check

    check(options.folder)
    return 0
