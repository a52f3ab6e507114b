"""`python -m mpitrain COMMAND ...`; the default command is `train`. PYTHON_ARGCOMPLETE_OK"""

import argparse
import io
import os
import sys
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn

from mpitrain import __version__
from mpitrain.errors import ALIASES, BadInput, TrainingFailed, nearest, say, unreachable
from mpitrain.signals import interruptible
from mpitrain.start import announce, prepare_environment, rank_of, ranks_of

prepare_environment()  # before anything loads NumPy

#: Commands, and the function that adds their parsers. Only the function of the given command is imported; the function
#: that runs the command is named in its parser, and imported when it runs.
ADDED = {
    ("train",): "mpitrain.cli.arguments:add_train",
    ("launch",): "mpitrain.cli.arguments:add_launch",
    ("evaluate", "predict", "export"): "mpitrain.cli.arguments:add_trained",
    ("prepare", "check"): "mpitrain.data.importers.commands:add_parsers",
    ("compare",): "mpitrain.report.comparison.command:add_parser",
    ("advise",): "mpitrain.report.advice.command:add_parser",
    ("report",): "mpitrain.report.command:add_parser",
    ("stability",): "mpitrain.algorithms.stability.command:add_parser",
    ("simulate", "calibrate"): "mpitrain.cli.arguments:add_simulated",
    ("describe", "jobs", "info"): "mpitrain.cli.arguments:add_shown",
}
COMMANDS = tuple(chain(*ADDED))
STARTING = ("advise", "compare", "launch")  # commands that start ranks


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit status: 0 done, 1 training failed or output lost, 2 bad input (one line on
    standard error), 75 training stopped before its end, 130 interrupted."""
    _prepare_output()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
        resolve_name("mpitrain.cli.completion:complete")(parser())
    try:
        with interruptible():
            return _run(sys.argv[1:] if arguments is None else arguments)
    except BadInput as error:
        say(error)
        return 2
    except TrainingFailed as error:
        say(error)
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130


def _run(words: list[str]) -> int:
    """Run the command that these words of the command line give; return the exit status."""
    if not words or words[0] not in (*COMMANDS, "-h", "--help", "--version"):
        if words and _is_misspelled(words[0]):
            near = nearest(words[0], list(COMMANDS), cutoff=0.6)
            return _refuse(f"{words[0]}: neither a command nor a configuration file{near}")
        words = ["train", *words]
    options = parser(words[0]).parse_args(words)
    if words[0] == "train" and not options.print_config:
        announce(__version__, options.set, (options.config, options.resume, options.continued))
    if words[0] in STARTING and ranks_of(os.environ) > 1:
        return _refuse(f"{words[0]} starts the ranks itself: start it without mpirun or srun")
    run = resolve_name(options.run) if isinstance(options.run, str) else options.run
    with unreachable():
        status = int(run(options) or 0)
    trains = words[0] in ("train", "launch") and not options.print_config  # its results are in the run folder
    lost = _output_was_lost()
    return status or int(lost and not trains)


def _is_misspelled(word: str) -> bool:
    """Whether a first word that is not a command cannot be a configuration file either."""
    path = Path(word)
    return not (word.startswith("-") or path.suffix or path.name != word or os.path.exists(path))


def _refuse(fault: str) -> int:
    """Report a fault of the command line once, whatever the number of ranks; return the exit status."""
    try:
        return int(resolve_name("mpitrain.cli.train:refuse")(fault))
    except BadInput as error:  # MPI cannot start here
        say(error)
        return 2


class _Outlet(io.FileIO):
    """Standard output of a command. Once nobody reads it, or its disk is full, what is written is dropped, so that the
    command goes on."""

    lost: OSError | None = None  #: why the process's output is dropped, if it is

    def write(self, content: Any, /) -> int:
        if _Outlet.lost is None:
            try:
                return super().write(content) or 0
            except OSError as error:
                _Outlet.lost = error
        return len(memoryview(content).cast("B"))


def _prepare_output() -> None:
    """Make both streams accept all output, even if they are closed, full or the locale lacks characters."""
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout is sys.__stdout__ and sys.stdout.fileno() == 1:
        before, outlet = sys.stdout, _Outlet(1, "w", closefd=False)
        at_once = before.write_through  # as with python -u
        buffer: Any = outlet if at_once else io.BufferedWriter(outlet)
        sys.stdout = io.TextIOWrapper(
            buffer, before.encoding, line_buffering=before.line_buffering, write_through=at_once
        )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _output_was_lost() -> bool:
    """Whether output could not be written, for another reason than a closed pipe; say so on standard error."""
    if not getattr(sys.stdout, "closed", True):  # by a user's code
        sys.stdout.flush()
    if _Outlet.lost is None or isinstance(_Outlet.lost, BrokenPipeError):
        return False
    say(f"standard output: cannot be written: {_Outlet.lost.strerror}")
    return True


class Parser(argparse.ArgumentParser):
    """A parser that takes options, by their whole names, between a command's other arguments, names the key that does
    what an option of other programs does, and prints on one rank only."""

    _apart = False  # whether `parse_known_args` is called within `parse_known_intermixed_args`

    def __init__(self, **more: Any) -> None:
        super().__init__(allow_abbrev=False, **more)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, left = super().parse_known_args(args, namespace)
        if not left or self._apart or self._subparsers:
            return found, left
        if "--" not in args:  # no options follow --
            self._apart = True
            try:
                found, left = self.parse_known_intermixed_args(args)
            finally:
                self._apart = False
        if left:  # said here, with the command's usage
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return found, left

    def error(self, message: str) -> NoReturn:
        _, unknown, words = message.partition("unrecognized arguments: --")
        name = words.split("=")[0].split()[:1]
        meant = ALIASES.get(name[0].replace("-", "_")) if name else None
        message += f"; here it is --set {meant}=VALUE" if unknown and meant else ""
        if rank_of(os.environ, -1) < 0:
            super().error(message)
        self.print_usage(sys.stderr)
        command = self.prog.partition(" ")[2]
        sys.exit(_refuse(f"{command}: {message}" if command else message))

    def _print_message(self, message: str, file: Any = None) -> None:
        if rank_of(os.environ, 0) == 0:
            super()._print_message(message, file)


def parser(command: str = "--help") -> argparse.ArgumentParser:
    """The parser of the command line: of all commands for --help, else of `command` and those added with it."""
    top = Parser(prog="mpitrain", description="Distributed SGD over MPI on HDF5 shards.")
    top.add_argument("--version", action="version", version=f"mpitrain {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for names, adder in ADDED.items():
        if command in names or command in ("-h", "--help"):
            resolve_name(adder)(commands)
    return top


if __name__ == "__main__":
    sys.exit(main())
