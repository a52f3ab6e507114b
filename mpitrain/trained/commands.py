"""The command line of `evaluate`, `predict` and `export`."""

import argparse
from pathlib import Path

from mpitrain.cli.arguments import add_code_arguments
from mpitrain.start import Subparsers

KINDS = ("posteriors", "log-posteriors", "log-likelihoods")
FORMATS = ("safetensors", "onnx", "npz")


def add_parsers(commands: Subparsers) -> None:
    """Add the three commands."""
    _add_evaluate(commands)
    _add_predict(commands)
    _add_export(commands)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument(
        "--checkpoint", metavar="NAME", help="a folder in RUN/checkpoints, such as best; default: the newest"
    )
    add_code_arguments(parser)


def _add_evaluate(commands: Subparsers) -> None:
    parser = commands.add_parser("evaluate", help="loss and error of a trained network on held-out data")
    _add_run(parser)
    parser.add_argument("data", nargs="?", type=Path, metavar="DATA", help="a shard folder; default: the run's own")
    parser.add_argument("--part", action="append", metavar="NAME", help="test, dev, ...; default: all held-out splits")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.set_defaults(run="mpitrain.trained.evaluate:evaluate")


def _add_predict(commands: Subparsers) -> None:
    parser = commands.add_parser("predict", help="write a trained network's posteriors or scaled log-likelihoods")
    _add_run(parser)
    parser.add_argument("data", type=Path, metavar="DATA", help="a shard folder")
    parser.add_argument("out", type=Path, metavar="OUT", help="a file ending in .h5, .npz or .ark (Kaldi, with a .scp)")
    parser.add_argument("--part", metavar="NAME", help="test, dev, ...; default: the first held-out split")
    _add_output(parser)
    parser.set_defaults(run="mpitrain.trained.predict:predict")


def _add_output(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--output", choices=KINDS, default=KINDS[0], help=f"default: {KINDS[0]}")
    parser.add_argument(
        "--priors",
        type=Path,
        metavar="FILE",
        help="priors or counts of the classes; default: counts in the training split",
    )
    parser.add_argument(
        "--smoothing",
        type=float,
        metavar="N",
        help="added to each class's count; default: 1, or 0 with --priors",
    )


def _add_export(commands: Subparsers) -> None:
    parser = commands.add_parser("export", help="write a trained network in another program's format")
    _add_run(parser)
    parser.add_argument("--format", required=True, help=", ".join(FORMATS))
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: RUN/model.FORMAT")
    onnx = parser.add_argument_group("onnx")
    _add_output(onnx)
    onnx.add_argument("--opset", type=int, metavar="N", help="version of ONNX's operators; default: 17")
    onnx.add_argument("--input", choices=("uint8", "float32"), help="type of images; default: uint8")
    onnx.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        help="compare with onnxruntime on held-out data; default: if it is installed and the data exist",
    )
    onnx.add_argument(
        "--data", type=Path, metavar="DATA", help="shard folder for the comparison; default: the run's own"
    )
    parser.set_defaults(run="mpitrain.trained.export:export")
