"""`python -m mpitrain advise CONFIG.toml --cluster FILE --ranks N`: search, and say what to train; see `--help`."""

import argparse
import math
import re
from contextlib import ExitStack
from pathlib import Path

from mpitrain.api.clusters import find
from mpitrain.api.launching import PROGRAM, launcher, on_ranks
from mpitrain.checkpoint.lease import occupying
from mpitrain.config import FIRST, read_toml, with_keys
from mpitrain.console import open_console
from mpitrain.errors import BadInput, printable, say, some
from mpitrain.files import Record
from mpitrain.report import ingredients
from mpitrain.report.advice.candidates import Candidates
from mpitrain.report.advice.result import HEADER, Advice
from mpitrain.report.advice.search import Question, Search
from mpitrain.report.advice.trials import Trials
from mpitrain.report.comparison.table import markdown
from mpitrain.signals import STOPPED, Interrupted, Stop
from mpitrain.start import Subparsers, option, usable_cores

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
SHORT = 12  # rows that are printed


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser("advise", help="find out what to train with, on a cluster or on these ranks")
    option(parser, "config CONFIG.toml", "default: the embedded digits", Path, nargs="?")
    where = parser.add_mutually_exclusive_group(required=True)
    option(where, "--cluster FILE", "simulate on the ranks of this cluster, as by calibrate")
    option(where, "--here", "try in earnest, on ranks that are started here")
    option(parser, "--ranks N", "number of ranks", int, required=True)
    what = parser.add_mutually_exclusive_group()
    wanted = "find the least time to this error, as a fraction; default: to that of the configuration itself"
    option(what, "--target-error E", wanted, float)
    option(what, "--time T", "find the least error after this time of training: 90s, 10m, 2h")
    option(parser, "--budget T", "how long the search may take; default: 10m", default="10m")
    option(parser, "--seed N", "draws what is tried; default: 1", int, default=1)
    option(parser, "--set KEY=VALUE", "set a key that is to stay so", action="append", default=[])
    option(parser, "--out DIR", "default: runs/advice", Path, default=Path("runs/advice"))
    words = 'with --here, launcher, such as "mpirun -n {ranks}"; default: the first one found'
    option(parser, "--launch WORDS", words, default="")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Search and write the advice. Returns 0, or 75 if a signal stopped it. Raises BadInput naming an option,
    TrainingFailed."""
    budget, target = _seconds("--budget", options.budget), options.target_error
    question = Question(target, _seconds("--time", options.time) if options.time is not None else None)
    for name, number, least in (("--ranks", options.ranks, 1), ("--seed", options.seed, 0)):
        if number < least:
            raise BadInput(f"{name} {number}: at least {least}")
    table = with_keys(read_toml(options.config) if options.config else {"training": dict(FIRST)}, options.set)
    candidates = Candidates(table, {word.partition("=")[0].strip() for word in options.set}, options.seed)
    by_error = candidates.first.config.by_error
    if target is not None and not (0 <= target < 1 if by_error else math.isfinite(target)):
        raise BadInput(f"--target-error {target:g}: not an error{', which is a fraction such as 0.05' * by_error}")
    stop, console = Stop(), open_console()
    trials = _trials(options, stop, {"ingredients": ingredients.of_config(candidates.first.config)})
    where = "in earnest" if options.here else f"on {options.cluster}, {some(trials.processes, 'simulation')} at a time"
    with ExitStack() as stack:
        stack.enter_context(occupying(options.out))
        print(f"{some(len(candidates.names), 'algorithm')} on {some(options.ranks, 'rank')} {where}", flush=True)
        stack.enter_context(stop.listening())
        live = stack.enter_context(console.status(""))  # shows nothing without a terminal
        search = Search(question, candidates, trials, budget, not options.here, console.print, live.update)
        try:
            search.run()
        except Interrupted:
            say("stopped by a signal; the same command continues")
            return STOPPED
        advice = Advice(search.tried, question)
        last, cells = advice.write(trials), advice.cells()
    print(f"\n{markdown(HEADER, cells[:SHORT])}")
    print(*map(printable, [f"all {len(cells)} are in {options.out / 'advice.md'}", *advice.lines(), *last]), sep="\n")
    return 0


def _seconds(option: str, text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|m|h|)", text)
    if not found or not float(found[1]):
        raise BadInput(f"{option} {text}: expected a time, such as 90s, 10m or 2h")
    return float(found[1]) * UNITS[found[2]]


def _trials(options: argparse.Namespace, stop: Stop, own: Record) -> Trials:
    """The trials, here or on a cluster; their outcomes depend on the user's `own` files, too. Raises BadInput."""
    if options.here:
        words = on_ranks(launcher(options.launch), options.ranks, [*PROGRAM, "train"])
        return Trials(options.out, options.ranks, 1, {"here": True, **own}, words, stop)
    if options.launch:
        raise BadInput("--launch: simulated ranks are started without a launcher; it belongs to --here")
    path = find(options.cluster)
    words = [*PROGRAM, "simulate", "--cluster", str(path), "--ranks", str(options.ranks)]
    return Trials(options.out, options.ranks, usable_cores(), read_toml(path) | own, words, stop)
