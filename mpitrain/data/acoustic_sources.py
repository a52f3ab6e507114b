"""The command line of the importers of recorded speech: `prepare kaldi | wav SOURCE DIR`."""

import argparse
from pathlib import Path

from mpitrain.data import kaldi, wav
from mpitrain.data.plan import CorpusPlan
from mpitrain.data.shards import shard_name
from mpitrain.data.sources import add_common, require_least
from mpitrain.errors import BadInput
from mpitrain.start import Subparsers


def add_acoustic_sources(sources: Subparsers) -> None:
    """Add the importers of recorded speech to `prepare`."""
    _add_kaldi(sources)
    _add_wav(sources)


def _add_kaldi(sources: Subparsers) -> None:
    parser = sources.add_parser("kaldi", help="Kaldi's features and alignments: scp, ark")
    parser.add_argument("source", type=Path, metavar="SOURCE", help="data folder with feats.scp, or an scp, or an ark")
    parser.add_argument(
        "--alignments",
        type=Path,
        nargs="+",
        action="extend",
        required=True,
        metavar="FILE",
        help="an integer per frame, for all splits: scp, ark, ark.gz",
    )
    _add_parts(parser, "data folder")
    parser.add_argument(
        "--cmvn",
        choices=("none", "scp", "speaker", "utterance"),
        default="none",
        help="subtract the mean given by cmvn.scp, or that of the speaker or utterance; default: none",
    )
    parser.add_argument("--norm-vars", action="store_true", help="with --cmvn: also divide by the standard deviation")
    _add_matching(parser)
    add_common(parser, _kaldi)


def _add_wav(sources: Subparsers) -> None:
    parser = sources.add_parser("wav", help="audio files and a file of labels: WAV, FLAC, SPHERE and others")
    parser.add_argument(
        "source", type=Path, metavar="SOURCE", help="folder of recordings, or a list with a key and a path per line"
    )
    labels = parser.add_mutually_exclusive_group(required=True)
    labels.add_argument(
        "--frames", type=Path, metavar="FILE", help="labels: a key, then one label per frame, on each line"
    )
    labels.add_argument(
        "--segments", type=Path, metavar="FILE", help="labels: key, start, end (seconds) and label on each line; or CTM"
    )
    parser.add_argument(
        "--background", metavar="LABEL", help="label of frames outside all segments; default: such frames are an error"
    )
    _add_parts(parser, "folder or list")
    parser.add_argument("--bins", type=int, default=23, help="log-mel features per frame; default: 23")
    parser.add_argument("--deltas", action="store_true", help="add first and second order deltas")
    _add_matching(parser)
    add_common(parser, _wav)


def _add_parts(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--dev", type=Path, metavar="SOURCE", help=f"{what} of the split dev")
    parser.add_argument(
        "--test", action="append", default=[], metavar="[NAME=]SOURCE", help="the same of test or test-NAME; repeatable"
    )
    parser.add_argument(
        "--split-off",
        default="",
        metavar="SPLIT=N,...",
        help="move N speakers of SOURCE to a split, such as dev=10,test=10",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed for drawing them; default: 1")


def _add_matching(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--classes", type=int, help="number of classes; default: the largest label plus one")
    parser.add_argument(
        "--tolerance", type=int, default=0, metavar="N", help="cut up to N frames if lengths differ; default: 0"
    )


def _kaldi(options: argparse.Namespace) -> CorpusPlan:
    require_least(options, tolerance=0, seed=0)
    if options.norm_vars and options.cmvn == "none":
        raise BadInput("--norm-vars: goes with --cmvn")
    how = kaldi.KaldiOptions(options.cmvn, options.norm_vars, options.tolerance, options.classes)
    sources, held_out = _parts(options)
    return kaldi.plan(sources, options.alignments, how, held_out, options.seed)


def _wav(options: argparse.Namespace) -> CorpusPlan:
    require_least(options, tolerance=0, seed=0, bins=3)
    if options.background is not None and not options.segments:
        raise BadInput("--background: goes with --segments")
    how = wav.RecordingOptions(options.bins, options.deltas, options.tolerance, options.classes)
    sources, held_out = _parts(options)
    return wav.plan(
        sources,
        options.segments or options.frames,
        how,
        held_out,
        segments=options.segments is not None,
        background=options.background,
        seed=options.seed,
    )


def _parts(options: argparse.Namespace) -> tuple[dict[str, Path], dict[str, int]]:
    """The source of each split, and the number of training speakers to move to each other split."""
    sources: dict[str, Path] = {"train": options.source}
    if options.dev:
        sources["dev"] = options.dev
    for given in options.test:
        name, named, source = given.partition("=")
        part = f"test-{name}" if named else "test"
        if part in sources:
            raise BadInput(f"--test {given}: {part} is given twice")
        sources[part] = Path(source if named else given)
    held_out: dict[str, int] = {}
    for item in filter(None, options.split_off.split(",")):
        part, _, count = item.partition("=")
        if not count.isascii() or not count.isdigit() or not int(count) or part in held_out or part in sources:
            raise BadInput(f"--split-off {options.split_off}: expected SPLIT=N, each split only once")
        held_out[part] = int(count)
    for part in (*sources, *held_out):
        shard_name(part, 0, 1)
    return sources, held_out
