"""The command line of the importers of recorded speech: `prepare kaldi | wav SOURCE DIR`."""

import argparse
from pathlib import Path
from typing import Any

from mpitrain.data.plan import Plan
from mpitrain.data.sources import add_common, check_classes
from mpitrain.errors import BadInput

Subparsers = Any  # argparse keeps the type of add_subparsers() to itself


def add_acoustic_sources(sources: Subparsers) -> None:
    """Add the importers of recorded speech to `prepare`."""
    _add_kaldi(sources)
    _add_wav(sources)


def _add_kaldi(sources: Subparsers) -> None:
    kaldi = sources.add_parser("kaldi", help="Kaldi's features and alignments: scp, ark")
    kaldi.add_argument("source", type=Path, metavar="SOURCE", help="data folder with feats.scp, or an scp, or an ark")
    kaldi.add_argument(
        "--alignments",
        type=Path,
        nargs="+",
        action="extend",
        required=True,
        metavar="FILE",
        help="an integer a frame, of all parts: scp, ark, ark.gz",
    )
    _add_parts(kaldi, "data folder")
    kaldi.add_argument(
        "--cmvn",
        choices=("none", "scp", "speaker", "utterance"),
        default="none",
        help="subtract means: by cmvn.scp and utt2spk, or the speaker's or utterance's own; default: none",
    )
    kaldi.add_argument("--norm-vars", action="store_true", help="divide by deviations too, with --cmvn")
    _add_matching(kaldi)
    add_common(kaldi, _kaldi)


def _add_wav(sources: Subparsers) -> None:
    wav = sources.add_parser("wav", help="audio files and a file of labels: WAV, FLAC, SPHERE and others")
    wav.add_argument("source", type=Path, metavar="SOURCE", help="folder of recordings, or a list: key and path a line")
    labels = wav.add_mutually_exclusive_group(required=True)
    labels.add_argument("--frames", type=Path, metavar="FILE", help="labels: key, then one label a frame, on a line")
    labels.add_argument(
        "--segments", type=Path, metavar="FILE", help="labels: key, start, end, label on a line, in seconds; or CTM"
    )
    wav.add_argument("--background", metavar="LABEL", help="where no segment is; default: that is refused")
    _add_parts(wav, "folder or list")
    wav.add_argument("--bins", type=int, default=23, help="log-mel features of a frame; default: 23")
    wav.add_argument("--deltas", action="store_true", help="add first and second order deltas")
    _add_matching(wav)
    add_common(wav, _wav)


def _add_parts(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--dev", type=Path, metavar="SOURCE", help=f"{what} of the part dev")
    parser.add_argument(
        "--test", action="append", default=[], metavar="[NAME=]SOURCE", help="of the part test or test-NAME; repeatable"
    )
    parser.add_argument(
        "--split-off", default="", metavar="PART=N,...", help="N speakers of SOURCE make a part, such as dev=10,test=10"
    )
    parser.add_argument("--seed", type=int, default=1, help="of that split; default: 1")


def _add_matching(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--classes", type=int, help="default: the greatest label and one")
    parser.add_argument(
        "--tolerance", type=int, default=0, metavar="N", help="cut up to N frames where lengths differ; default: 0"
    )


def _kaldi(options: argparse.Namespace) -> Plan:
    from mpitrain.data import kaldi

    _require_least(options, tolerance=0, seed=0)
    if options.norm_vars and options.cmvn == "none":
        raise BadInput("--norm-vars: goes with --cmvn")
    how = kaldi.How(options.cmvn, options.norm_vars, options.tolerance, options.classes)
    sources, held_out = _parts(options)
    return kaldi.plan(sources, options.alignments, how, held_out, options.seed)


def _wav(options: argparse.Namespace) -> Plan:
    from mpitrain.data import wav

    _require_least(options, tolerance=0, seed=0, bins=3)
    if options.background is not None and not options.segments:
        raise BadInput("--background: goes with --segments")
    how = wav.How(options.bins, options.deltas, options.tolerance, options.classes)
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


def _require_least(options: argparse.Namespace, **least: int) -> None:
    check_classes(options)
    for name, value in least.items():
        given = getattr(options, name)
        if given is not None and given < value:
            raise BadInput(f"--{name} {given}: at least {value}")


def _parts(options: argparse.Namespace) -> tuple[dict[str, Path], dict[str, int]]:
    """The source of each part, and how many speakers of train make each other one."""
    from mpitrain.data.shards import shard_name

    sources: dict[str, Path] = {"train": options.source}
    if options.dev:
        sources["dev"] = options.dev
    for given in options.test:
        name, named, source = given.partition("=")
        part = f"test-{name}" if named else "test"
        if part in sources:
            raise BadInput(f"--test {given}: {part} is there twice")
        sources[part] = Path(source if named else given)
    held_out: dict[str, int] = {}
    for item in filter(None, options.split_off.split(",")):
        part, _, count = item.partition("=")
        if not count.isascii() or not count.isdigit() or not int(count) or part in held_out or part in sources:
            raise BadInput(f"--split-off {options.split_off}: expected PART=N, each part but once")
        held_out[part] = int(count)
    for part in (*sources, *held_out):
        shard_name(part, 0, 1)
    return sources, held_out
