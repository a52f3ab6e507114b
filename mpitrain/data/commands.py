"""The command line of `prepare SOURCE ... DIR` and `check DIR`."""

import argparse
from collections.abc import Callable
from pathlib import Path

from mpitrain.data.acoustic_sources import add_acoustic_sources
from mpitrain.data.sources import Subparsers, add_sources, require_least


def add_parsers(commands: Subparsers) -> None:
    """Add `prepare`, with one subcommand per source, and `check`."""
    prepare = commands.add_parser("prepare", help="write a shard folder from a source")
    sources = prepare.add_subparsers(metavar="SOURCE", required=True)
    digits = sources.add_parser("digits", help="the embedded handwritten digits")
    digits.add_argument("folder", type=Path, metavar="DIR", help="the folder for the shards")
    digits.set_defaults(run=_digits)
    _add_speech(sources)
    add_acoustic_sources(sources)
    add_sources(sources)
    check = commands.add_parser("check", help="verify every shard of a folder")
    check.add_argument("folder", type=Path, metavar="DIR", help="a shard folder")
    check.set_defaults(run=_check)


def _add_speech(sources: Subparsers) -> None:
    speech = sources.add_parser("speech", help="a phone-aligned corpus of synthesised speech")
    speech.add_argument("folder", type=Path, metavar="DIR", help="the folder for the shards")
    speech.add_argument("--language", default="bn", help="bn (Bengali), cmn (Mandarin), en, hi, de, es; default: bn")
    speech.add_argument("--hours", type=float, default=1.0, help="hours of training speech; default: 1")
    speech.add_argument("--classes", type=int, default=1998, help="number of phone states; default: 1998")
    speech.add_argument("--bins", type=int, default=23, help="log-mel features per frame; default: 23")
    speech.add_argument("--deltas", action="store_true", help="add first and second order deltas")
    speech.add_argument(
        "--noise",
        type=float,
        metavar="SNR",
        help="add noise with at least this SNR in dB to half of the training speech",
    )
    speech.add_argument("--seed", type=int, default=1, help="seed of sentences, voices and noise; default: 1")
    speech.add_argument("--jobs", type=int, help="number of processes; default: one per core")
    speech.set_defaults(run=_speech)


def _digits(options: argparse.Namespace) -> int:
    from mpitrain.data.digits import prepare_digits

    return _alone(lambda: prepare_digits(options.folder)) or _check(options)


def _speech(options: argparse.Namespace) -> int:
    from mpitrain.data.speech import prepare_speech
    from mpitrain.data.utterances import Recipe

    require_least(options, classes=1, bins=3, jobs=1, seed=0)
    recipe = Recipe(options.language, options.bins, options.deltas, options.noise, options.seed)
    return _alone(lambda: prepare_speech(options.folder, recipe, options.hours, options.classes, options.jobs))


def _alone(action: Callable[[], None]) -> int:
    """Run an action that needs a single process; return the exit status. Raises BadInput on all ranks if there are
    several."""
    from mpitrain.mpi.agreement import alone

    def once() -> int:
        action()
        return 0

    return alone(once, "this source is prepared without mpirun; it uses all cores of one node")


def _check(options: argparse.Namespace) -> int:
    from mpitrain.data.check import check

    check(options.folder)
    return 0
