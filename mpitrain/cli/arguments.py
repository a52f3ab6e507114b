"""The arguments of the commands that train, use what was trained, or show what there is. Nothing here loads NumPy."""

import argparse
from pathlib import Path

from mpitrain.start import Subparsers

KINDS = ("posteriors", "log-posteriors", "log-likelihoods")
FORMATS = ("safetensors", "onnx", "npz")

EXAMPLES = """examples:
  mpirun -n 4 python -m mpitrain                            train on the embedded digits
  mpirun -n 4 python -m mpitrain net.toml --out my-run      a configuration of your own
  mpirun -n 4 python -m mpitrain --set algorithm.name=allreduce --set training.epochs=3
  mpirun -n 4 python -m mpitrain --resume my-run            continue it
  python -m mpitrain net.toml --print-config                every key, with its value"""


def add_train(commands: Subparsers) -> None:
    """Add `train`."""
    raw = argparse.RawDescriptionHelpFormatter
    train = commands.add_parser("train", help="train a network (the default)", epilog=EXAMPLES, formatter_class=raw)
    _add_training(train)
    train.set_defaults(run="mpitrain.cli.train:train")


def add_launch(commands: Subparsers) -> None:
    """Add `launch`."""
    launch = commands.add_parser("launch", help="train on several ranks, and start them again when one is lost")
    launch.add_argument("-n", type=int, required=True, dest="ranks", metavar="N", help="number of ranks")
    words = 'launcher, such as "mpirun -n {ranks}"; default: the first one found'
    launch.add_argument("--launch", default="", metavar="WORDS", help=words)
    launch.add_argument("--hosts", default="", metavar="a:4,b:4", help="nodes and ranks; default: the Slurm job's")
    _add_training(launch)
    own = "what a program of your own gets: launch -n 4 --continue DIR -- FILE.py WORDS; DIR is where it saves"
    launch.add_argument("words", nargs="*", metavar="WORDS", help=own)
    launch.set_defaults(run="mpitrain.cli.launch:run")


def add_trained(commands: Subparsers) -> None:
    """Add `evaluate`, `predict` and `export`."""
    evaluate = commands.add_parser("evaluate", help="loss and error of a trained network on held-out data")
    _add_run(evaluate)
    evaluate.add_argument("data", nargs="?", type=Path, metavar="DATA", help="a shard folder; default: the run's own")
    parts = "test, dev, ...; default: all held-out splits"
    evaluate.add_argument("--part", action="append", metavar="NAME", help=parts)
    shown = evaluate.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    blocks = "write sums over 1000 blocks of samples of each part, as JSON, instead of a table"
    shown.add_argument("--blocks", type=Path, metavar="FILE", help=blocks)
    evaluate.set_defaults(run="mpitrain.trained.evaluate:evaluate")

    predict = commands.add_parser("predict", help="write a trained network's posteriors or scaled log-likelihoods")
    _add_run(predict)
    predict.add_argument("data", type=Path, metavar="DATA", help="a shard folder")
    out = "a file ending in .h5, .npz or .ark (Kaldi, with a .scp)"
    predict.add_argument("out", type=Path, metavar="OUT", help=out)
    predict.add_argument("--part", metavar="NAME", help="test, dev, ...; default: the first held-out split")
    _add_output(predict)
    predict.set_defaults(run="mpitrain.trained.predict:predict")

    export = commands.add_parser("export", help="write a trained network in another program's format")
    _add_run(export)
    export.add_argument("--format", required=True, help=", ".join(FORMATS))
    export.add_argument("--out", type=Path, metavar="FILE", help="default: RUN/model.FORMAT")
    onnx = export.add_argument_group("onnx")
    _add_output(onnx)
    onnx.add_argument("--opset", type=int, metavar="N", help="version of ONNX's operators; default: 17")
    onnx.add_argument("--input", choices=("uint8", "float32"), help="type of images; default: uint8")
    check = "compare with onnxruntime on held-out data; default: if it is installed and the data exist"
    onnx.add_argument("--check", action=argparse.BooleanOptionalAction, help=check)
    data = "shard folder for the comparison; default: the run's own"
    onnx.add_argument("--data", type=Path, metavar="DATA", help=data)
    export.set_defaults(run="mpitrain.trained.export:export")


def add_simulated(commands: Subparsers) -> None:
    """Add `simulate` and `calibrate`."""
    simulate = commands.add_parser("simulate", help="train on a cluster that a file describes, in virtual time")
    _add_training(simulate)
    what = "the cluster: a file, or a paper's name, such as strom2015: docs/simulate.md"
    where = simulate.add_mutually_exclusive_group(required=True)
    where.add_argument("--cluster", metavar="FILE", help=what)
    again = "a run of run.record_order = true: repeat its training to the bit, event by event"
    where.add_argument("--replay", type=Path, metavar="RUN", help=again)
    simulate.add_argument("--trace", action="store_true", help="also write trace.json: --set run.trace=true")
    alone = "neither data nor gradients, for time and traffic alone"
    simulate.add_argument("--phantom", action="store_true", help=alone)
    entries = (
        "entries that a phantom of sparse-delta sends per weight and minibatch; default: its target_density, or 0.002"
    )
    simulate.add_argument("--density", type=float, metavar="D", help=entries)
    count = "how many; default: as many as the cluster has room for"
    simulate.add_argument("--ranks", type=int, metavar="N", help=count)
    simulate.set_defaults(run="mpitrain.simulation.command:run")

    calibrate = commands.add_parser("calibrate", help="measure this machine's file for simulate, under mpirun")
    calibrate.add_argument("cluster", type=Path, metavar="FILE", help="the file to write, such as cluster.toml")
    _add_config(calibrate)
    calibrate.add_argument("--nodes", type=int, metavar="N", help="number of nodes to write; default: those measured")
    rate = "bandwidth between nodes to write, a second: 1Gbit, 12.5GB; default: as measured"
    calibrate.add_argument("--bandwidth", metavar="RATE", help=rate)
    calibrate.set_defaults(run="mpitrain.simulation.calibrate:calibrate")


def add_shown(commands: Subparsers) -> None:
    """Add `describe`, `jobs` and `info`."""
    what = "a network's layers, or a module's parameters: shapes, numbers, operations"
    describe = commands.add_parser("describe", help=what)
    _add_config(describe)
    shape = "shape of an input, or WINDOWxFEATURES; default: the data's, or a preset's own"
    describe.add_argument("--input", metavar="HxWxC", help=shape)
    describe.add_argument("--classes", type=int, metavar="N", help="default: as for --input")
    timed = "also time a step by NumPy, by PyTorch and by PyTorch in bf16, as far as they are there"
    describe.add_argument("--time", action="store_true", help=timed)
    describe.set_defaults(run="mpitrain.cli.describe:run")

    jobs = commands.add_parser("jobs", help="write the batch scripts for Slurm to DIR/jobs")
    jobs.add_argument("dir", type=Path, nargs="?", default=Path(), metavar="DIR", help="default: this folder")
    jobs.set_defaults(run="mpitrain.cli.jobs:run")

    info = commands.add_parser("info", help="what was found: MPI, ranks, nodes, threads, devices")
    info.add_argument("--check", action="store_true", help="also measure links, storage and a gradient, and advise")
    info.add_argument("--data", type=Path, metavar="DIR", help="with --check: a shard folder to read from")
    info.add_argument("--out", type=Path, metavar="DIR", help="with --check: a folder to write to")
    info.set_defaults(run="mpitrain.cli.info:run")


def _add_config(parser: argparse.ArgumentParser, override: str = "override a key, as a.b=value") -> None:
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG.toml", help="default: the embedded digits")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=override)


def _add_training(parser: argparse.ArgumentParser) -> None:
    """What to train, with which settings, and where to."""
    _add_config(parser, "override one key, as a.b=value")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--out", type=Path, metavar="DIR", help="the run folder; default: runs/<time>-<algorithm>")
    where.add_argument("--resume", type=Path, metavar="DIR", help="continue the run in this folder")
    requeued = "--resume DIR where it holds a whole checkpoint, else start in it: for jobs that are requeued"
    where.add_argument("--continue", type=Path, dest="continued", metavar="DIR", help=requeued)
    _add_code(parser)
    parser.add_argument("--print-config", action="store_true", help="print the resolved configuration and leave")


def _add_code(parser: argparse.ArgumentParser) -> None:
    """Which code of the user's own is executed on account of a run folder."""
    trust = "execute the code that a run folder names, though another user owns it"
    parser.add_argument("--trust", action="store_true", help=trust)
    new = "execute the files of model.import and model.loss as they are now, not as the run was trained with them"
    parser.add_argument("--new-code", action="store_true", help=new)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="a run folder")
    which = "a folder in RUN/checkpoints, such as best; default: the newest"
    parser.add_argument("--checkpoint", metavar="NAME", help=which)
    _add_code(parser)


def _add_output(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--output", choices=KINDS, default=KINDS[0], help=f"default: {KINDS[0]}")
    priors = "priors or counts of the classes; default: counts in the training split"
    parser.add_argument("--priors", type=Path, metavar="FILE", help=priors)
    smoothing = "added to each class's count; default: 1, or 0 with --priors"
    parser.add_argument("--smoothing", type=float, metavar="N", help=smoothing)
