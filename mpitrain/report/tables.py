"""The tables of a report: results with the best values marked, keys that differ, totals as bars, warnings."""

from collections.abc import Callable

from mpitrain.errors import some
from mpitrain.files import Record, read_text
from mpitrain.report.html import BestCell, Html, bars, join, run_name, safe, show, table
from mpitrain.report.records import finite
from mpitrain.report.runs import ALIVE, ENDS, StoredRun
from mpitrain.report.series import held_out
from mpitrain.stopwatch import KINDS, shares

Column = tuple[str, str, str, Callable[[list[float]], float] | None]  # key, title, form, which value is best


def columns(runs: list[StoredRun]) -> list[Column]:
    """The columns of the table of results."""
    return [
        *((plot.key, plot.title, plot.form, min) for plot in held_out(runs)),
        ("train_loss", "Train loss, last epoch", "number", min),
        ("epoch", "Epochs", "number", None),
        ("seconds", "Time", "seconds", None),
        ("samples_per_second", "Samples/s", "count", max),
        ("algorithm", "Algorithm", "text", None),
        ("ranks", "Ranks", "count", None),
        ("workers", "Workers", "count", None),
        ("training.minibatch", "Minibatch", "count", None),
        ("training.learning_rate", "Learning rate", "number", None),
        ("staleness_mean", "Staleness", "number", None),
        ("staleness_max", "Staleness, at most", "count", None),
        ("bytes_sent", "Sent", "bytes", None),
    ]


def results(runs: list[StoredRun]) -> Html:
    """A row for each run. Among several finished runs on the same data, the best value in each column is marked;
    simulated runs, whose time is virtual, are compared only with each other."""
    values, marked = [results_of(run) for run in runs], False
    rows: list[list[str]] = [[run_name(number, run.name, run.marks)] for number, run in enumerate(runs)]
    sources = [
        (*(run.config.get(key) for key in ("data.path", "data.import")), bool(told.get("simulated")))
        for run, told in zip(runs, values, strict=True)
    ]
    stale = any(finite(told, "staleness_max") for told in values)
    wanted = [column for column in columns(runs) if stale or not column[0].startswith("staleness")]
    for key, _, form, choose in wanted:
        of_finished = [finite(told, key) if run.finished else None for run, told in zip(runs, values, strict=True)]
        for row, told, value, source in zip(rows, values, of_finished, sources, strict=True):
            rivals = [each for each, of in zip(of_finished, sources, strict=True) if of == source and each is not None]
            best = choose is not None and len(rivals) > 1 and value == choose(rivals)
            shown = (told.get(key) or None) if key.startswith("staleness") else told.get(key)
            row.append((BestCell if best else str)(show(shown, form)))
            marked = marked or best
    apart = ", simulated ones apart," * (len({simulated for *_, simulated in sources}) > 1)
    among = " on the same data" * (len({tuple(data) for *data, _ in sources}) > 1) + apart
    caption = "Results at the end, or so far" + (f"; the best of the finished runs{among} are marked" if marked else "")
    return table(caption, ["Run", *(title for _, title, _, _ in wanted)], rows, "results")


def results_of(run: StoredRun) -> Record:
    """The run's configuration and results, with the number of epochs trained."""
    last = (run.by_samples("train", "evaluate") or [{}])[-1]
    return {"epoch": last.get("epoch", 0), "samples_per_second": run.speed, **run.config, **run.results}


def differences(runs: list[StoredRun]) -> list[tuple[str, list[object]]]:
    """The keys of the configurations, and the number of ranks, whose values differ between runs."""
    tables = [{"ranks": run.results.get("ranks"), **run.config} for run in runs]
    keys = dict.fromkeys(key for of_run in tables for key in of_run)
    rows = [(key, [of_run.get(key) for of_run in tables]) for key in keys]
    return [(key, values) for key, values in rows if any(value != values[0] for value in values)]


def configuration(runs: list[StoredRun]) -> Html:
    """The keys that differ; those that only some of the runs have, and each complete configuration, are folded."""
    found = differences(runs)
    common = [row for row in found if None not in row[1]]
    special = [row for row in found if None in row[1]]
    parts = [_keys(runs, "Keys that differ", common)] if common else []
    if special:
        lines = _keys(runs, "Keys that only some of the runs have", special)
        summary = f"{some(len(special), 'key')} that only some of the runs have"
        parts.append(Html(f"<details><summary>{summary}</summary>{lines}</details>"))
    elif not common and len(runs) > 1:
        parts.append(Html("<p>All runs have the same configuration.</p>"))
    for number, run in enumerate(runs):
        name, text = run_name(number, run.name), safe(read_text(run.folder / "config.toml"), keep="\n\t")
        parts.append(Html(f"<details><summary>{name}: all keys</summary><pre>{text}</pre></details>"))
    return join(parts)


def _keys(runs: list[StoredRun], caption: str, rows: list[tuple[str, list[object]]]) -> Html:
    header = ["Key", *(run_name(number, run.name) for number, run in enumerate(runs))]
    cells = [[_code(key), *(_toml(value) for value in values)] for key, values in rows]
    return table(caption, header, cells, "keys")


TOTALS = (
    ("bytes_sent", "Bytes sent", "bytes"),
    ("bytes_received", "Bytes received", "bytes"),
    ("messages_sent", "Messages sent", "count"),
    ("bytes_per_sample", "Bytes sent for each sample", "bytes"),
    ("compression_ratio", "Compression over the whole run", "number"),
    ("communication_hidden", "Share of the communication hidden behind computing", "percent"),
    ("server_share", "Share of the time in which the server was busy", "percent"),
)


def totals(runs: list[StoredRun]) -> Html:
    """Bars that compare the totals of the runs; unfinished runs have none."""
    told = [(number, run.name, _with_ratios(run.summary)) for number, run in enumerate(runs) if run.summary]
    figures = []
    for key, title, form in TOTALS:
        found = [(number, name, finite(summary, key)) for number, name, summary in told]
        figures.append(bars(title, [(number, name, value) for number, name, value in found if value is not None], form))
    for number, name, summary in told:
        kinds: dict[str, float] = summary.get("bytes_by_kind") or {}  # type: ignore[assignment]  # was checked
        rows = [(number, kind.replace("_", " "), count) for kind, count in kinds.items()]
        figures.append(bars(f"Bytes received by kind: {name}", rows, "bytes"))
    return join(figures)


def _with_ratios(summary: Record) -> Record:
    """The summary with ratios of its counts, which begin at the last start of the program, to samples and time."""
    told = {key: finite(summary, key) or 0 for key in ("samples", "seconds", "resumed_samples", "resumed_seconds")}
    samples, seconds = told["samples"] - told["resumed_samples"], told["seconds"] - told["resumed_seconds"]
    sent, busy = finite(summary, "bytes_sent"), finite(summary, "server_busy_seconds")
    per_sample = sent / samples if sent is not None and samples else None
    return {**summary, "bytes_per_sample": per_sample, "server_share": busy / seconds if busy and seconds else None}


def times(runs: list[StoredRun]) -> Html:
    """Where each rank's time went, a row for each rank; of more than a dozen ranks, for the first and for those that
    computed the most and the least."""
    rows = []
    for number, run in enumerate(runs):
        ranks: list[dict[str, float]] = (run.summary or {}).get("time") or []  # type: ignore[assignment]  # was checked
        if len(ranks) > 12:
            ranks = [ranks[0], *(choose(ranks[1:], key=lambda each: each["computing"]) for choose in (max, min))]
        for each in ranks:
            name = run_name(number, f"{run.name}, rank {each['rank']:.0f}")
            total = sum(each[kind] for kind in KINDS)
            rows.append([name, show(total, "seconds"), *(show(shares([each])[kind], "percent") for kind in KINDS)])
    header = ["Rank", "Time", *(kind.capitalize() for kind in KINDS)]
    return table("Where the time went", header, rows, "results")


def sessions(runs: list[StoredRun]) -> Html:
    """A row for each session of the runs that were resumed, or that ended unfinished."""
    rows = []
    for number, run in enumerate(runs):
        if len(run.sessions) < 2 and all(each.end in (ENDS["finished"], ALIVE) for each in run.sessions):
            continue
        for count, each in enumerate(run.sessions, 1):
            began, ended, repeated = (value / run.samples_of_epoch for value in (each.began, each.ended, each.repeated))
            name = f"{run.name}, {count} of {len(run.sessions)}"
            cells = [show(each.ranks, "count"), f"{show(began)} to {show(ended)}", show(each.seconds, "seconds")]
            lost = ", ".join(map(str, each.silent)) or "–"
            rows.append([run_name(number, name), *cells, show(repeated) if repeated else "–", lost, each.end])
    header = ["Session", "Ranks", "Epochs", "Time", "Epochs trained again", "Lost ranks", "How it ended"]
    return table("Starts of the runs that were resumed or did not finish", header, rows, "sessions")


def warnings(runs: list[StoredRun]) -> Html:
    """The warnings of the runs, and the numbers of gradients that were refused."""
    rows = []
    for number, run in enumerate(runs):
        said = [str(record.get("text")) for record in run.events("warning")]
        refused = len(run.events("refused"))
        said += [f"refused {some(refused, 'gradient')} with elements that are not finite"] if refused else []
        rows += [[run_name(number, run.name), text] for text in dict.fromkeys(said)]
    return table("Warnings", ["Run", "Said"], rows, "text")


def _code(key: str) -> Html:
    """A key as HTML that allows a line break after each dot."""
    return Html(f"<code>{safe(key).replace('.', '.<wbr>')}</code>")


def _toml(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'
