"""`python -m mpitrain report RUN...`: an HTML page about runs, and plots as files on request."""

import argparse
import time
from pathlib import Path

from mpitrain.errors import BadInput, printable
from mpitrain.files import write_whole
from mpitrain.report.page import page
from mpitrain.report.pictures import FORMATS, draw
from mpitrain.report.runs import StoredRun, read_runs


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser("report", help="an HTML page about runs: curves, results, differences")
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page; default: RUN/report.html, or report.html")
    parser.add_argument("--title", default="", help="heading of the page; default: the names of the runs")
    plots = "also write every plot to a file in DIR (needs matplotlib)"
    parser.add_argument("--plots", type=Path, metavar="DIR", help=plots)
    parser.add_argument("--format", choices=FORMATS, default="png", help="format of these files; default: png")
    watch = "write the page anew every S seconds (10) until all runs have ended; it loads itself anew in the browser"
    parser.add_argument("--watch", type=int, nargs="?", const=10, metavar="S", help=watch)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Write the files and print their paths. Raises BadInput naming the folder or file."""
    folders = [folder for folder in options.folders if len(options.folders) == 1 or not _left_out(folder)]
    if not folders:
        raise BadInput("none of these is a run folder")
    if options.watch is not None and not 1 <= options.watch <= 3600:
        raise BadInput(f"--watch {options.watch}: expected 1 to 3600 seconds")
    runs = read_runs(folders)
    out = options.out or (folders[0] if len(options.folders) == 1 else Path()) / "report.html"
    if not out.parent.is_dir():
        raise BadInput(f"--out: {out.parent}: no such folder")
    title = options.title or (
        runs[0].name if len(runs) == 1 else "Report of " + ", ".join(run.name for run in runs[:4])
    )
    if len(runs) > 4 and not options.title:
        title += f" and {len(runs) - 4} more"
    if options.watch:
        runs = _watch(folders, runs, out, title, options.watch)
    drawn = draw(runs, options.plots, options.format) if options.plots else []
    write_whole(out, page(runs, title))
    for path in [out, *drawn]:
        print(printable(str(path)))


def _watch(folders: list[Path], runs: list[StoredRun], out: Path, title: str, seconds: int) -> list[StoredRun]:
    """Write the page every this many seconds until all runs have ended, or until Ctrl-C; the runs as last read."""
    print(f"{printable(str(out))}: written every {seconds} s; Ctrl-C ends this", flush=True)
    try:
        while any(run.summary is None and not run.failed for run in runs):
            write_whole(out, page(runs, title, watch=seconds))
            time.sleep(seconds)
            runs = read_runs(folders)
    except KeyboardInterrupt:
        pass
    return runs


def _left_out(folder: Path) -> bool:
    """Whether a folder, of several such as `runs/*`, was not made by a run."""
    left_out = folder.is_dir() and not (folder / "config.toml").exists() and not (folder / "metrics.jsonl").exists()
    if left_out:
        print(f"{printable(str(folder))}: left out, not a run folder")
    return left_out
