"""The arguments of the commands that train, use what was trained, or show what there is. Nothing here loads NumPy."""

import argparse
from pathlib import Path

from mpitrain.start import Subparsers, option

KINDS = ("posteriors", "log-posteriors", "log-likelihoods")
FORMATS = ("safetensors", "onnx", "npz")

EXAMPLES = """examples:
  mpirun -n 4 python -m mpitrain                            train on the embedded digits
  mpirun -n 4 python -m mpitrain net.toml --out my-run      a configuration of your own
  mpirun -n 4 python -m mpitrain --set algorithm.name=allreduce --set training.epochs=3
  mpirun -n 4 python -m mpitrain --resume my-run            continue it
  python -m mpitrain net.toml --print-config                the keys, with their values"""


def add_train(commands: Subparsers) -> None:
    """Add `train`."""
    raw = argparse.RawDescriptionHelpFormatter
    train = commands.add_parser("train", help="train a network (the default)", epilog=EXAMPLES, formatter_class=raw)
    _add_training(train)
    train.set_defaults(run="mpitrain.cli.train:train")


def add_launch(commands: Subparsers) -> None:
    """Add `launch`."""
    launch = commands.add_parser("launch", help="train on several ranks, and start them again when one is lost")
    option(launch, "-n N", "number of ranks", int, required=True, dest="ranks")
    option(launch, "--launch WORDS", 'launcher, such as "mpirun -n {ranks}"; default: the first one found', default="")
    option(launch, "--hosts a:4,b:4", "nodes and ranks; default: the Slurm job's", default="")
    _add_training(launch)
    own = "what a program of your own gets: launch -n 4 --continue DIR -- FILE.py WORDS; DIR is where it saves"
    option(launch, "words WORDS", own, nargs="*")
    launch.set_defaults(run="mpitrain.cli.launch:run")


def add_trained(commands: Subparsers) -> None:
    """Add `evaluate`, `predict` and `export`."""
    evaluate = commands.add_parser("evaluate", help="loss and error of a trained network on held-out data")
    _add_run(evaluate)
    option(evaluate, "data DATA", "a shard folder; default: the run's own", Path, nargs="?")
    option(evaluate, "--part NAME", "test, dev, ...; default: all held-out splits", action="append")
    shown = evaluate.add_mutually_exclusive_group()
    option(shown, "--json", "print one JSON object instead of a table")
    blocks = "write sums over 1000 blocks of samples of each part, as JSON, instead of a table"
    option(shown, "--blocks FILE", blocks, Path)
    evaluate.set_defaults(run="mpitrain.trained.evaluate:evaluate")

    predict = commands.add_parser("predict", help="write a trained network's posteriors or scaled log-likelihoods")
    _add_run(predict)
    option(predict, "data DATA", "a shard folder", Path)
    option(predict, "out OUT", "a file ending in .h5, .npz or .ark (Kaldi, with a .scp)", Path)
    option(predict, "--part NAME", "test, dev, ...; default: the first held-out split")
    _add_output(predict)
    predict.set_defaults(run="mpitrain.trained.predict:predict")

    export = commands.add_parser("export", help="write a trained network in another program's format")
    _add_run(export)
    option(export, "--format", ", ".join(FORMATS), required=True)
    option(export, "--out FILE", "default: RUN/model.FORMAT", Path)
    onnx = export.add_argument_group("onnx")
    _add_output(onnx)
    option(onnx, "--opset N", "version of ONNX's operators; default: 17, of a PyTorch module 18", int)
    option(onnx, "--input", "type of images; default: uint8", choices=("uint8", "float32"))
    check = "compare with onnxruntime on held-out data; default: if it is installed and the data exist"
    option(onnx, "--check", check, action=argparse.BooleanOptionalAction)
    option(onnx, "--data DATA", "shard folder for the comparison; default: the run's own", Path)
    export.set_defaults(run="mpitrain.trained.export:export")


def add_simulated(commands: Subparsers) -> None:
    """Add `simulate` and `calibrate`."""
    simulate = commands.add_parser("simulate", help="train on a cluster that a file describes, in virtual time")
    _add_training(simulate)
    where = simulate.add_mutually_exclusive_group(required=True)
    option(where, "--cluster FILE", "the cluster: a file, or a paper's name, such as strom2015: docs/simulate.md")
    again = "a run of run.record_order = true: repeat its training to the bit, event by event"
    option(where, "--replay RUN", again, Path)
    option(simulate, "--trace", "also write trace.json: --set run.trace=true")
    option(simulate, "--phantom", "neither data nor gradients, for time and traffic alone")
    entries = (
        "entries that a phantom of sparse-delta sends per weight and `tau` minibatches; default: its target_density, "
        "or 0.002"
    )
    option(simulate, "--density D", entries, float)
    option(simulate, "--ranks N", "how many; default: as many as the cluster has room for", int)
    simulate.set_defaults(run="mpitrain.simulation.command:run")

    calibrate = commands.add_parser("calibrate", help="measure this machine's file for simulate, under mpirun")
    option(calibrate, "cluster FILE", "the file to write, such as cluster.toml", Path)
    _add_config(calibrate)
    option(calibrate, "--nodes N", "number of nodes to write; default: those measured", int)
    rate = "bandwidth between nodes to write, a second: 1Gbit, 12.5GB; default: as measured"
    option(calibrate, "--bandwidth RATE", rate)
    calibrate.set_defaults(run="mpitrain.simulation.calibrate:calibrate")


def add_shown(commands: Subparsers) -> None:
    """Add `describe`, `jobs` and `info`."""
    what = "a network's layers, or a module's parameters: shapes, numbers, operations"
    describe = commands.add_parser("describe", help=what)
    _add_config(describe)
    shape = "shape of an input, or WINDOWxFEATURES; default: the data's, or a preset's own"
    option(describe, "--input HxWxC", shape)
    option(describe, "--classes N", "default: as for --input", int)
    timed = "also time a step by NumPy, by PyTorch and by PyTorch in bf16, as far as they are there"
    option(describe, "--time", timed)
    describe.set_defaults(run="mpitrain.cli.describe:run")

    jobs = commands.add_parser("jobs", help="write the batch scripts for Slurm to DIR/jobs")
    option(jobs, "dir DIR", "default: this folder", Path, nargs="?", default=Path())
    jobs.set_defaults(run="mpitrain.cli.jobs:run")

    info = commands.add_parser("info", help="what was found: MPI, ranks, nodes, threads, devices")
    option(info, "--check", "also measure links, storage and a gradient, and advise")
    option(info, "--data DIR", "with --check: a shard folder to read from", Path)
    option(info, "--out DIR", "with --check: a folder to write to", Path)
    info.set_defaults(run="mpitrain.cli.info:run")


def _add_config(parser: argparse.ArgumentParser, override: str = "override a key, as a.b=value") -> None:
    option(parser, "config CONFIG.toml", "default: the embedded digits", Path, nargs="?")
    option(parser, "--set KEY=VALUE", override, action="append", default=[])


def _add_training(parser: argparse.ArgumentParser) -> None:
    """Add what to train, with which settings, and the run folder."""
    _add_config(parser, "override one key, as a.b=value")
    where = parser.add_mutually_exclusive_group()
    option(where, "--out DIR", "the run folder; default: runs/<time>-<algorithm>", Path)
    option(where, "--resume DIR", "continue the run in this folder", Path)
    requeued = "--resume DIR where it holds a whole checkpoint, else start in it: for jobs that are requeued"
    option(where, "--continue DIR", requeued, Path, dest="continued")
    _add_code(parser)
    option(parser, "--print-config", "print the resolved configuration and leave")


def _add_code(parser: argparse.ArgumentParser) -> None:
    """Add the options that say whether to execute the user code that a run folder names."""
    option(parser, "--trust", "execute the code that a run folder names, though another user owns it")
    new = "execute your own files as they are now, not as the run was trained with them"
    option(parser, "--new-code", new)


def _add_run(parser: argparse.ArgumentParser) -> None:
    option(parser, "run_folder RUN", "a run folder", Path)
    option(parser, "--checkpoint NAME", "a folder in RUN/checkpoints, such as best; default: the newest")
    _add_code(parser)


def _add_output(parser: argparse._ActionsContainer) -> None:
    option(parser, "--output", f"default: {KINDS[0]}", choices=KINDS, default=KINDS[0])
    option(parser, "--priors FILE", "priors or counts of the classes; default: counts in the training split", Path)
    option(parser, "--smoothing N", "added to each class's count; default: 1, or 0 with --priors", float)
