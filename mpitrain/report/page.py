"""The report as one HTML page that needs nothing else: style, script and data are in it."""

import json
from datetime import datetime
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from mpitrain import __version__
from mpitrain.report import tables
from mpitrain.report.html import run_name, show, table
from mpitrain.report.runs import Run
from mpitrain.report.series import Plot, Point, plots, thin


def page(runs: list[Run], title: str, before: str = "") -> str:
    """The whole page; `before` is HTML that comes first."""
    shown = plots(runs)
    parts = {
        "title": escape(title),
        "lead": f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}, read {datetime.now():%Y-%m-%d %H:%M} "
        f"by mpitrain {__version__}",
        "style": _asset("page.css"),
        "script": _asset("page.js"),
        "before": before,
        "results": tables.results(runs),
        "legend": "".join(
            f'<li><button type="button" aria-pressed="true" data-run="{number}">'
            f"{run_name(number, run.name, run.marks)}</button></li>"
            for number, run in enumerate(runs)
        ),
        "plots": "".join(_figure(number, plot, runs) for number, plot in enumerate(shown)),
        "totals": section("Totals", tables.totals(runs), "bars-grid"),
        "configuration": section("Configuration", tables.configuration(runs)),
        "warnings": section("Warnings", tables.warnings(runs)),
        "data": _data(runs, shown),
    }
    return Template(_asset("page.html")).substitute(parts)


def section(heading: str, content: str, kind: str = "") -> str:
    """A section of the page, or nothing when there is nothing in it."""
    return f'<section><h2>{escape(heading)}</h2><div class="{kind}">{content}</div></section>' if content else ""


def _asset(name: str) -> str:
    return (files("mpitrain.report") / name).read_text(encoding="utf-8")


def _figure(number: int, plot: Plot, runs: list[Run]) -> str:
    """The frame that page.js draws in, with the same curves in figures for who cannot see them."""
    form = plot.kind.form
    rows = [
        [run_name(run, runs[run].name), *(escape(show(value, form)) for value in _ends(curve))]
        for run, curve in plot.curves.items()
    ]
    title = escape(plot.kind.title)
    values = table(plot.kind.title, ["Run", "first", "least", "greatest", "last"], rows)
    return (
        f'<figure class="plot" data-plot="{number}"><figcaption>{title}</figcaption>'
        f'<button type="button" class="scale" aria-pressed="false">log</button><div class="drawing"></div>'
        f"<details><summary>In figures</summary>{values}</details></figure>"
    )


def _ends(curve: list[Point]) -> tuple[float, float, float, float]:
    values = [point.value for point in curve]
    return values[0], min(values), max(values), values[-1]


def _data(runs: list[Run], shown: list[Plot]) -> str:
    """What page.js draws, as JSON that may stand in a script element."""
    data = {
        "runs": [
            {
                "name": run.name,
                "whole": run.finished,
                "epoch": run.samples_of_epoch,
                "resumed": [
                    [record.get("seconds"), record.get("samples")]
                    for record in run.events("start")
                    if record.get("resumed")
                ],
            }
            for run in runs
        ],
        "plots": [
            {
                "title": plot.kind.title,
                "form": plot.kind.form,
                "log": plot.log,
                "axis": plot.axis,
                "curves": [{"run": run, **_columns(thin(curve))} for run, curve in plot.curves.items()],
            }
            for plot in shown
        ],
    }
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _columns(curve: list[Point]) -> dict[str, Any]:
    return {
        "seconds": [_short(point.seconds, 6) for point in curve],
        "samples": [int(point.samples) for point in curve],
        "values": [_short(point.value, 5) for point in curve],
    }


def _short(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")
