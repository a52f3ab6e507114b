"""The command line of `prepare SOURCE ... DIR` and `check DIR`."""

from pathlib import Path

from mpitrain.data.importers import arrays, cifar, glyphs, kaldi, mnist, picture_folders, text, wav
from mpitrain.start import Subparsers


def add_parsers(commands: Subparsers) -> None:
    """Add `prepare`, with one subcommand per source, and `check`."""
    prepare = commands.add_parser("prepare", help="write a shard folder from a source")
    sources = prepare.add_subparsers(metavar="SOURCE", required=True)
    digits = sources.add_parser("digits", help="the embedded handwritten digits")
    digits.add_argument("folder", type=Path, metavar="DIR", help="the folder for the shards")
    digits.set_defaults(run="mpitrain.data.importers.preparing:digits")
    _add_speech(sources)
    for importer in (kaldi, wav, cifar, mnist, picture_folders, arrays, text, glyphs):
        importer.add_parser(sources)
    check = commands.add_parser("check", help="verify every shard of a folder")
    check.add_argument("folder", type=Path, metavar="DIR", help="a shard folder")
    check.set_defaults(run="mpitrain.data.check:run")


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
    speech.set_defaults(run="mpitrain.data.importers.preparing:speech")
