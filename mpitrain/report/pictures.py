"""Write the plots of a report to files, for papers and slides, with matplotlib, an optional dependency."""

import re
from pathlib import Path

from mpitrain.errors import library, naming, printable
from mpitrain.files import replacing
from mpitrain.report.runs import StoredRun
from mpitrain.report.series import Plot, plots

FORMATS = ("png", "svg")
#: The colours of page.css on white; a run has the same style as on the page.
COLOURS = ("#2949db", "#c97f0b", "#0ea09c", "#b7351e", "#874885", "#4b275c")
DASHES = ("-", "--", ":")


def draw(runs: list[StoredRun], folder: Path, form: str) -> list[Path]:
    """Write a file for each plot, drawn over wall clock and over epochs; returns their paths. Raises BadInput naming
    a file that cannot be written, or matplotlib if it is missing."""
    library("matplotlib", "--plots needs matplotlib", "plots")
    with naming(f"--plots: {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for plot in plots(runs):
        name = re.sub(r"[^\w-]", "_", plot.key, flags=re.ASCII)[:100]  # a key may be anything
        path = folder / f"{name}.{form}"
        while path in written:
            path = path.with_stem(f"{path.stem}_")
        with naming(f"--plots: {path}"), replacing(path) as [temporary]:
            _draw(plot, runs, temporary)
        written.append(path)
    return written


def _draw(plot: Plot, runs: list[StoredRun], path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    against = (plot.axis,) if plot.axis else ("seconds", "epochs")
    figure = Figure(figsize=(5 * len(against), 3.4), dpi=150, layout="constrained")
    for axes, by in zip(figure.subplots(1, len(against), squeeze=False)[0], against, strict=True):
        for number, curve in plot.curves.items():
            seconds, samples, values = zip(*curve, strict=True)
            epochs = [count / runs[number].samples_of_epoch for count in samples]
            positions = {"seconds": seconds, "epochs": epochs, "staleness": samples}[by]
            style = {"color": COLOURS[number % 6], "linestyle": DASHES[number // 6 % 3], "linewidth": 1.4}
            axes.plot(positions, values, label=_plain(runs[number].name), **style)
        axes.set(xlabel=by, yscale="log" if plot.log else "linear")
        axes.grid(alpha=0.3)
        if plot.form == "percent":
            axes.yaxis.set_major_formatter(_percent)
            axes.yaxis.set_minor_formatter(_percent)
        if plot.log:
            axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    figure.suptitle(_plain(plot.title))
    longest = max(len(_plain(runs[number].name)) for number in plot.curves)
    columns = max(int(figure.get_figwidth() / (0.6 + 0.065 * longest)), 1)  # inches: line and margin, letter
    named = figure.get_axes()[0].get_legend_handles_labels()
    figure.legend(*named, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=columns, fontsize=8)
    figure.savefig(path, bbox_inches="tight")  # with the names below, however many there are


def _plain(name: str) -> str:
    """The name, changed so that matplotlib neither parses it as a formula nor omits it from the legend."""
    text = printable(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _percent(share: float, place: int) -> str:
    return f"{100 * share:.3g}%"
