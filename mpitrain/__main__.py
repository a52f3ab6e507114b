"""`python -m mpitrain COMMAND ...`; the default command is `train`."""

import argparse
import io
import os
import sys
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name

from mpitrain import __version__
from mpitrain.cli import environment
from mpitrain.cli.arguments import add_training_arguments, training_options
from mpitrain.errors import BadInput, printable
from mpitrain.signals import Stop
from mpitrain.start import first_deadline

environment.prepare()  # before anything loads NumPy

#: The functions that add these commands to the command line; only that of the given command is loaded.
ADDED = {
    ("evaluate", "predict", "export"): "mpitrain.trained.commands:add_parsers",
    ("prepare", "check"): "mpitrain.data.commands:add_parsers",
    ("compare",): "mpitrain.report.comparison.command:add_parser",
    ("report",): "mpitrain.report.command:add_parser",
    ("stability",): "mpitrain.stability.command:add_parser",
    ("simulate",): "mpitrain.simulation.command:add_parsers",
    ("calibrate",): "mpitrain.simulation.calibrate:add_parser",
    ("describe",): "mpitrain.cli.describe:add_parser",
    ("jobs",): "mpitrain.cli.jobs:add_parser",
}
COMMANDS = ("train", *chain(*ADDED), "info")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status: 0 done, 2 bad input (one line on standard error), 1 a failed training."""
    _prepare_output()
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] not in (*COMMANDS, "-h", "--help", "--version"):
        if words and _is_misspelled(words[0]):
            return _refuse(words[0])
        words = ["train", *words]
    options = parser(words[0]).parse_args(words)
    try:
        return int(options.run(options) or 0)
    except BadInput as error:
        print(f"mpitrain: {printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mpitrain: interrupted", file=sys.stderr)
        return 130


def _is_misspelled(word: str) -> bool:
    """Whether a first word that is not a command cannot be a configuration file either."""
    path = Path(word)
    return not (word.startswith("-") or path.suffix or path.name != word or path.exists())


def _refuse(word: str) -> int:
    """Report once, on any number of ranks, that there is no such command."""
    from mpitrain.config import nearest
    from mpitrain.mpi import Transport
    from mpitrain.mpi.agreement import agreed, ending_together

    def fail() -> int:
        raise BadInput(f"{word}: neither a command nor a configuration file{nearest(word, list(COMMANDS))}")

    transport = Transport()
    return ending_together(transport, lambda: agreed(transport, fail, "the command"))


def _prepare_output() -> None:
    """Make both streams accept all output, even if they are closed or the locale lacks characters."""
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def parser(command: str = "--help") -> argparse.ArgumentParser:
    """The parser of the command line, complete or as far as one command needs it."""
    top = argparse.ArgumentParser(prog="mpitrain", description="Distributed SGD over MPI on HDF5 shards.")
    top.add_argument("--version", action="version", version=f"mpitrain {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    _add_train(commands)
    for names, adder in ADDED.items():
        if command in names or command in ("-h", "--help"):
            resolve_name(adder)(commands)
    info = commands.add_parser("info", help="what was found: MPI, ranks, nodes, threads, devices")
    info.add_argument("--check", action="store_true", help="also measure links, storage and a gradient, and advise")
    info.add_argument("--data", type=Path, metavar="DIR", help="with --check: a shard folder to read from")
    info.add_argument("--out", type=Path, metavar="DIR", help="with --check: a folder to write to")
    info.set_defaults(run=_info)
    return top


def _add_train(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    train = commands.add_parser("train", help="train a network (the default)")
    add_training_arguments(train)
    train.set_defaults(run=_train)


def _train(options: argparse.Namespace) -> int:
    from mpitrain.mpi import Transport, abort_on_exception
    from mpitrain.mpi.agreement import agreed, ending_together

    abort_on_exception()
    stop = Stop()
    stop.install()
    transport = Transport(deadline=first_deadline(options.set))

    def load_and_train() -> int:
        transport.watch()
        with transport.working():  # loading takes seconds, on some file systems minutes
            from mpitrain.cli.train import configured
        told = agreed(transport, lambda: training_options(options), "the command line")
        return configured(transport, told, stop)

    return ending_together(transport, load_and_train)


def _info(options: argparse.Namespace) -> int:
    from mpitrain.cli.info import info
    from mpitrain.mpi import abort_on_exception

    abort_on_exception()
    return info(options.check, options.data, options.out)


if __name__ == "__main__":
    sys.exit(main())
