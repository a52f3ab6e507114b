"""The report as one self-contained HTML page, which includes style, script and data.

Its content security policy allows style and script only by their hashes.
"""

import hashlib
import json
import re
from base64 import b64encode
from datetime import datetime
from importlib.resources import files
from string import Template

from mpitrain import __version__
from mpitrain.errors import printable, some
from mpitrain.files import Record
from mpitrain.report import tables
from mpitrain.report.html import Html, join, run_name, safe, show, table
from mpitrain.report.runs import StoredRun
from mpitrain.report.series import Plot, Point, plots, thin
from mpitrain.report.timeline import timelines

PLACES = ("seconds", "samples")  # what plots are drawn over


def page(runs: list[StoredRun], title: str, before: Html | None = None, watch: int = 0) -> str:
    """The whole page as HTML, with `before` at its top. It reloads itself every `watch` seconds, unless that is 0."""
    shown = plots(runs)
    parts = {
        "title": safe(title),
        "watch": Html(f' data-watch="{watch}"') if watch else "",
        "lead": f"{some(len(runs), 'run')}, read {datetime.now():%Y-%m-%d %H:%M} by mpitrain {__version__}",
        "style": _asset("page.css"),
        "script": _asset("page.js"),
        "style_hash": _hash(_asset("page.css")),
        "script_hash": _hash(_asset("page.js")),
        "before": before or "",
        "results": tables.results(runs),
        "legend": "".join(
            f'<li><button type="button" aria-pressed="true" data-run="{number}">'
            f"{run_name(number, run.name, run.marks)}</button></li>"
            for number, run in enumerate(runs)
        ),
        "plots": join(_figure(number, plot, runs) for number, plot in enumerate(shown)),
        "sessions": section("Sessions", tables.sessions(runs)),
        "totals": section("Totals", tables.totals(runs), "bars-grid"),
        "times": section("Time", tables.times(runs)),
        "timelines": section("Timeline", timelines(runs)),
        "configuration": section("Configuration", tables.configuration(runs)),
        "warnings": section("Warnings", tables.warnings(runs)),
        "data": _data(runs, shown),
    }
    return Template(_asset("page.html")).substitute(parts)


def section(heading: str, content: Html, kind: str = "") -> Html:
    """A section of the page; empty if `content` is. `kind` is its CSS class."""
    return Html(f'<section><h2>{safe(heading)}</h2><div class="{kind}">{content}</div></section>' if content else "")


def _asset(name: str) -> str:
    return (files("mpitrain.report") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The hash of an element with this text, for the content security policy."""
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _figure(number: int, plot: Plot, runs: list[StoredRun]) -> Html:
    """The frame in which page.js draws, with the curves as numbers for readers who cannot see them."""
    rows = []
    for run, curve in plot.curves.items():
        values = [point.value for point in curve]
        ends = (values[0], min(values), max(values), values[-1])
        rows.append([run_name(run, runs[run].name), *(show(value, plot.form) for value in ends)])
    title, shown = safe(plot.title), table(plot.title, ["Run", "first", "least", "greatest", "last"], rows)
    return Html(
        f'<figure class="plot" data-plot="{number}"><figcaption>{title}</figcaption>'
        '<div class="tools">'
        f'<button type="button" class="whole" aria-label="show all of it: {title}" hidden>all</button>'
        f'<button type="button" class="scale" aria-label="logarithmic scale: {title}" aria-pressed="false">log</button>'
        f'<button type="button" class="save" aria-label="save as SVG: {title}">save</button></div>'
        '<div class="drawing"></div>'
        f'<details><summary>In figures<span class="said">: {title}</span></summary>{shown}</details></figure>'
    )


def _data(runs: list[StoredRun], shown: list[Plot]) -> str:
    """The data that page.js draws, as JSON that is safe inside a script element."""
    data = {
        "runs": [
            {
                "name": run.name,
                "whole": run.finished or run.running,
                "epoch": run.samples_of_epoch,
                "resumed": _resumes(run),
            }
            for run in runs
        ],
        "plots": [
            {
                **plot._asdict(),
                "title": printable(plot.title),
                "key": re.sub(r"\W", "_", plot.key, flags=re.ASCII),
                "curves": [{"run": run, **_columns(thin(curve))} for run, curve in plot.curves.items()],
            }
            for plot in shown
        ],
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)  # in ASCII: U+2028 and others are escaped
    return text.translate({ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&"})


def _resumes(run: StoredRun) -> list[Record]:
    """Where (`seconds`, `samples`) the run was resumed or, after a loss of ranks, restarted; `lost`: what was lost."""
    found, lost = list[Record](), ""
    for record in run.events("restart", "start"):
        if record["event"] == "restart":
            lost = printable(str(record.get("text")))
        elif (lost or record.get("resumed")) and None not in (at := {key: record.get(key) for key in PLACES}).values():
            found.append(at | {"lost": lost})
            lost = ""
    return found


def _columns(curve: list[Point]) -> dict[str, list[float]]:
    return {
        "seconds": [float(f"{point.seconds:.6g}") for point in curve],
        "samples": [int(point.samples) for point in curve],
        "values": [float(f"{point.value:.5g}") for point in curve],
    }
