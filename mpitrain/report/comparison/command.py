"""`python -m mpitrain compare CONFIG... --target-error X`: run a matrix and fill the table; see `--help`."""

import argparse
import json
import math
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import TypeVar

from mpitrain.api.launching import Relay, launcher
from mpitrain.checkpoint.lease import occupying
from mpitrain.errors import BadInput, printable, say, some
from mpitrain.files import write_whole
from mpitrain.monitoring.records import merits, shown
from mpitrain.report.benchmarks.known import NAMES, TARGETS, base_of, require_data
from mpitrain.report.comparison import differences, launching
from mpitrain.report.comparison import table as tables
from mpitrain.report.comparison.matrix import Element, by_chance, matrix
from mpitrain.report.html import duration, join, table
from mpitrain.report.page import page, section
from mpitrain.report.records import finite
from mpitrain.signals import NUMBERS, STOPPED, Interrupted, handling
from mpitrain.start import Subparsers, option

DAY = 86400.0
Kind = TypeVar("Kind", int, float)
Starter = Callable[[Element], list[str]]  # gives the command line of an element's run


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand."""
    what = "run configurations with several numbers of workers, and compare them in a table"
    parser = subparsers.add_parser("compare", help=what)
    option(parser, "configs CONFIG", "a TOML file, or the name of an algorithm", nargs="+")
    errors = "errors to reach, as fractions: 0.05,0.02; of text bits a byte, otherwise the figure of merit"
    option(parser, "--target-error X,...", errors, default="")
    option(parser, "--on", "a benchmark: its configuration and data; docs/benchmarks.md", choices=NAMES)
    option(parser, "--paired", "also resample differences on the same test samples; --on does")
    option(parser, "--workers N,...", "numbers of workers; default: 1", default="1")
    option(parser, "--seeds N,...", "seeds; default: that of the configuration", default="")
    option(parser, "--set KEY=VALUE", "for every run, as in train", action="append", default=[])
    option(parser, "--out DIR", "default: runs/compare", Path, default=Path("runs/compare"))
    option(parser, "--launch WORDS", 'launcher, such as "mpirun -n {ranks}"; default: the first one found', default="")
    option(parser, "--simulate FILE", "a cluster, as for simulate: simulate the runs on it", default="")
    option(parser, "--deadline S", "seconds for one run; default: a day", float, default=DAY)
    base = "configuration whose fewest workers are the base of speed-ups; default: the same"
    option(parser, "--baseline NAME", base, default="")
    option(parser, "--test-set NAME", "test set, such as test-noisy; default: the first", default="test")
    step = parser.add_mutually_exclusive_group()
    option(step, "--list", "print number, name, ranks and state of each run, and run nothing")
    option(step, "--run K", "run only number K of the list, from 0", int, dest="element")
    option(step, "--table", "write the table of the existing runs, and run nothing")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Carry out the step that is chosen. Returns 0 if its runs are finished, 75 if a signal stopped it, otherwise 1.

    Raises BadInput naming the option.
    """
    with handling(_interrupt):  # also where no run could be told: data are made, or differences evaluated
        try:
            return _carry_out(options)
        except Interrupted:
            say("stopped by a signal; the same command continues")
            return STOPPED


def _interrupt(number: int, frame: FrameType | None) -> None:
    for each in NUMBERS:  # until `handling` ends: what follows are echoes, which would disturb the end
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted


def _carry_out(options: argparse.Namespace) -> int:
    if not 0 < options.deadline < math.inf:
        raise BadInput(f"--deadline: must be positive, not {options.deadline}")
    counts = "numbers like 1,2,4"
    workers = _numbers("--workers", options.workers, int, lambda n: n >= 1, counts)
    seeds = _numbers("--seeds", options.seeds, int, lambda n: n >= 0, counts) if options.seeds else []
    if not (options.target_error or options.on):
        raise BadInput("--target-error: which error is to be reached? Only --on has one of its own")
    base = base_of(options.on, options.set) if options.on else None
    elements = matrix(options.configs, workers, seeds, options.set, options.out, base)
    by_error, told = all(element.loaded.by_error for element in elements), options.target_error or TARGETS[options.on]
    reachable = (lambda x: 0 <= x < 1) if by_error else math.isfinite
    errors = f"{'fractions' if by_error else 'numbers'} like 0.05,0.02"
    targets = _numbers("--target-error", told, float, reachable, errors)
    if options.baseline and all(element.configuration != options.baseline for element in elements):
        raise BadInput(f"--baseline: {options.baseline} is none of the configurations")
    if options.list:
        for number, element in enumerate(elements):
            print(number, element.shown, element.ranks, element.state(), sep="\t")
        return 0
    if options.element is not None and not 0 <= options.element < len(elements):
        raise BadInput(f"--run: from 0 to {len(elements) - 1}, not {options.element}")
    if options.table and not options.out.is_dir():
        raise BadInput(f"--out: {options.out}: no such folder")
    launching.require_same(options.out, options.simulate)
    chosen = dict(enumerate(elements)) if options.element is None else {options.element: elements[options.element]}
    launching.require_unchanged(chosen.values())
    if base and not options.table:
        for name, config in {each.configuration: each.config for each in elements}.items() if base.optimizer else ():
            step, rate = config.get("algorithm.optimizer.name", "its own step"), config["training.learning_rate"]
            print(f"{printable(name)}: trained with {step} at a learning rate of {rate:g}", flush=True)
        require_data(options.on, options.set)
    starter = None if options.table else _starter(options, elements)
    shared = starter is None or options.element is not None  # by the runs of a job array, one a process
    with nullcontext() if shared else occupying(options.out):
        if starter:
            _run_all(chosen, len(elements), starter, options.deadline, options.test_set)
        if options.element is None:
            _write_table(elements, targets, options)
    return 0 if all(element.state() == "finished" for element in chosen.values()) else 1


def _starter(options: argparse.Namespace, elements: list[Element]) -> Starter:
    """How runs are started. Raises BadInput naming an option."""
    if not options.simulate:
        launch = launcher(options.launch)
        return lambda element: launching.launched(element, launch)
    if options.launch:
        raise BadInput("--launch: simulated runs are started without a launcher")
    launching.require_room(elements, options.simulate)
    write_whole(options.out / launching.KEPT, launching.cluster_text(options.simulate))
    return lambda element: launching.simulated(element, options.simulate)


def _run_all(elements: dict[int, Element], count: int, starter: Starter, deadline: float, test_set: str) -> None:
    """Run unfinished elements one after the other; a failure is reported, and the next one is run. Raises Interrupted
    after a signal.

    Elements are reported by their numbers among `count`, as used by --list and --run. Raises BadInput at the first run
    that was not tested on the `test_set`.
    """
    relay = Relay()
    # Refuse a folder of another configuration before starting any run.
    states = {number: element.state() for number, element in elements.items()}
    for line in by_chance([*elements.values()]):
        say(f"warning: {line}")
    with relay.listening():
        for number, element in elements.items():
            label = f"run {number} of 0 to {count - 1}  {element.shown}"
            if states[number] == "finished":
                print(f"{label}: finished before", flush=True)
            else:
                print(f"{label}: {some(element.ranks, 'rank')} …", flush=True)
                fault = printable(launching.run(element, starter(element), deadline, relay))
                failed = f"{'' if relay.asked else 'failed: '}{fault} (see {printable(str(element.log))})"
                print(f"{label}: {failed if fault else _outcome(element)}", flush=True)
            if relay.asked:
                raise Interrupted
            if (run := element.finished()) is not None:
                tables.require_tested(run, test_set)


def _outcome(element: Element) -> str:
    run = element.read()
    results = run.results if run else {}
    took = duration(finite(results, "seconds") or 0.0)
    virtual = " (virtual)" if results.get("simulated") else ""
    test = next((f", {name} {value}" for name, value in merits(results) if name.startswith("test")), "")
    return took + virtual + test


def _write_table(elements: list[Element], targets: list[float], options: argparse.Namespace) -> None:
    found = tables.rows(elements, targets, options.test_set, options.baseline)
    states = {element.shown: element.state() for element in elements}
    text, note = tables.markdown(*tables.cells(found)), _note(states, options, found)
    note += "".join(f" {line}." for line in by_chance(elements))
    pairs: list[differences.Pair] = []
    if options.paired or options.on:
        differences.evaluate([run.folder for row in found for run in row.runs], options.deadline)
        pairs = differences.differences(found, options.test_set, options.baseline)
    title = "Comparison of " + ", ".join(dict.fromkeys(element.configuration for element in elements))
    runs = [run for element in elements if (run := element.read())]
    told = {
        "simulated": bool(options.simulate),
        "targets": targets,
        "test_set": options.test_set,
        "baseline": options.baseline,
        "runs": states,
        "rows": tables.values(found),
        "differences": differences.values(pairs),
    }
    body = section("Comparison", table(note, *tables.cells(found), "results"))
    if pairs:
        about = differences.note(found, options.test_set)
        text += f"\n{note}\n\n{tables.markdown(*differences.cells(pairs))}"
        body = join([body, section("Differences", table(about, *differences.cells(pairs), "results"))])
        note = about
    written = {
        "compare.md": f"{text}\n{note}\n",
        "compare.csv": tables.comma_separated(found),
        "compare.json": json.dumps(told, indent=2) + "\n",
        "report.html": page(runs, title, body),
    }
    for name, content in written.items():
        write_whole(options.out / name, content)
    print(f"\n{text}\n{note}")
    print(*(printable(str(options.out / name)) for name in written), sep="\n")


def _note(states: dict[str, str], options: argparse.Namespace, found: list[tables.Row]) -> str:
    """A note on the meaning of the table's numbers, and on missing runs."""
    base = f"{options.baseline} with its fewest workers" if options.baseline else "the configuration's fewest workers"
    note = f"Time: of training, until the {options.test_set} {shown(found[0].merit)} was first that low. "
    note += f"Speed-up: over {base}; efficiency: that by the ratio of workers. "
    note += "Mean ± standard deviation over the seeds."
    if any(reached.at_most for row in found for reached in row.reached.values()):
        note += " ≤: the first evaluation was already that low; with a smaller run.evaluate_every it comes earlier."
    note += f" All times are virtual: simulated on {printable(options.simulate)}." if options.simulate else ""
    left = [f"{name} ({state})" for name, state in states.items() if state != "finished"]
    return note + (f" Not in the table: {', '.join(left)}." if left else "")


def _numbers(
    option: str, text: str, kind: Callable[[str], Kind], allowed: Callable[[Kind], bool], form: str
) -> list[Kind]:
    """Parse a list such as "1,2,4"."""
    try:
        found = [kind(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(map(allowed, found)) or len(set(found)) < len(found):
        raise BadInput(f"{option} {text}: expected {form}, each once")
    return found
