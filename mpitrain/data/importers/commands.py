"""The command line of `prepare SOURCE ... DIR` and `check DIR`."""

from pathlib import Path

from mpitrain.data.importers import arrays, cifar, glyphs, kaldi, mnist, picture_folders, text, wav
from mpitrain.start import Subparsers, option


def add_parsers(commands: Subparsers) -> None:
    """Add `prepare`, with one subcommand per source, and `check`."""
    prepare = commands.add_parser("prepare", help="write a shard folder from a source")
    sources = prepare.add_subparsers(metavar="SOURCE", required=True)
    digits = sources.add_parser("digits", help="the embedded handwritten digits")
    option(digits, "folder DIR", "the folder for the shards", Path)
    digits.set_defaults(run="mpitrain.data.importers.preparing:digits")
    _add_speech(sources)
    for importer in (kaldi, wav, cifar, mnist, picture_folders, arrays, text, glyphs):
        importer.add_parser(sources)
    check = commands.add_parser("check", help="verify every shard of a folder")
    option(check, "folder DIR", "a shard folder", Path)
    check.set_defaults(run="mpitrain.data.check:run")


def _add_speech(sources: Subparsers) -> None:
    speech = sources.add_parser("speech", help="a phone-aligned corpus of synthesised speech")
    option(speech, "folder DIR", "the folder for the shards", Path)
    option(speech, "--language", "bn (Bengali), cmn (Mandarin), en, hi, de, es; default: bn", default="bn")
    option(speech, "--hours", "hours of training speech; default: 1", float, default=1.0)
    option(speech, "--classes", "number of phone states; default: 1998", int, default=1998)
    option(speech, "--bins", "log-mel features per frame; default: 23", int, default=23)
    option(speech, "--deltas", "add first and second order deltas")
    option(speech, "--noise SNR", "add noise with at least this SNR in dB to half of the training speech", float)
    option(speech, "--seed", "seed of sentences, voices and noise; default: 1", int, default=1)
    option(speech, "--jobs", "number of processes; default: one per core", int)
    speech.set_defaults(run="mpitrain.data.importers.preparing:speech")
