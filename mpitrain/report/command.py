"""`python -m mpitrain report RUN...`: an HTML page about runs, and plots as files on request."""

import argparse
import time
from pathlib import Path

from mpitrain.errors import BadInput, printable
from mpitrain.files import write_whole
from mpitrain.report.page import page
from mpitrain.report.pictures import FORMATS, draw
from mpitrain.report.runs import StoredRun, read_runs
from mpitrain.start import Subparsers, option

PATIENCE = 600  # seconds for which runs are watched while no process trains them: batch systems may start them again


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser("report", help="an HTML page about runs: curves, results, differences")
    option(parser, "folders RUN", "a run folder", Path, nargs="+")
    option(parser, "--out FILE", "the page; default: RUN/report.html, or report.html", Path)
    option(parser, "--title", "heading of the page; default: the names of the runs", default="")
    option(parser, "--plots DIR", "also write every plot to a file in DIR (needs matplotlib)", Path)
    option(parser, "--format", "format of these files; default: png", choices=FORMATS)
    watch = "write the page anew every S seconds (10) until all runs have ended; it loads itself anew in the browser"
    option(parser, "--watch S", watch, int, nargs="?", const=10)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Write the files and print their paths. Raises BadInput naming the folder or file."""
    folders = [folder for folder in options.folders if len(options.folders) == 1 or not _left_out(folder)]
    if not folders:
        raise BadInput("none of these is a run folder")
    if options.watch is not None and not 1 <= options.watch <= 3600:
        raise BadInput(f"--watch {options.watch}: expected 1 to 3600 seconds")
    if options.format and not options.plots:
        raise BadInput(f"--format {options.format}: only --plots DIR writes such files")
    runs = read_runs(folders)
    out = options.out or (folders[0] if len(options.folders) == 1 else Path()) / "report.html"
    if not out.parent.is_dir():
        raise BadInput(f"--out: {out.parent}: no such folder")
    names = ", ".join(run.name for run in runs[:4]) + f" and {len(runs) - 4} more" * (len(runs) > 4)
    title = options.title or (f"Report of {names}" if len(runs) > 1 else names)
    if options.watch:
        runs = _watch(folders, runs, out, title, options.watch)
    drawn = draw(runs, options.plots, options.format or FORMATS[0]) if options.plots else []
    write_whole(out, page(runs, title))
    for path in [out, *drawn]:
        print(printable(str(path)))


def _watch(folders: list[Path], runs: list[StoredRun], out: Path, title: str, seconds: int) -> list[StoredRun]:
    """Write the page every `seconds` seconds until all runs have ended or seem dead, or until Ctrl-C. Returns the runs
    as last read."""
    print(f"{printable(str(out))}: written every {seconds} s; Ctrl-C ends this", flush=True)
    in_vain = 0  # pages in succession during which no process worked on any run
    try:
        while not all(run.over for run in runs) and in_vain * seconds < PATIENCE:
            write_whole(out, page(runs, title, watch=seconds))
            time.sleep(seconds)
            runs = read_runs(folders)
            in_vain = 0 if any(run.running for run in runs) else in_vain + 1
    except KeyboardInterrupt:
        pass
    return runs


def _left_out(folder: Path) -> bool:
    """Whether a folder or file, one of several such as `runs/*`, is no run's folder; if so, say that it is left out."""
    left_out = folder.exists() and not (folder / "config.toml").exists() and not (folder / "metrics.jsonl").exists()
    if left_out:
        print(f"{printable(str(folder))}: left out, not a run folder")
    return left_out
