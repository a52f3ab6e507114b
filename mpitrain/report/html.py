"""Format tables and bars as HTML, and numbers for readers.

All content is escaped unless it is Html already, because names and values come from untrusted files.
"""

from collections.abc import Iterable, Sequence
from html import escape

from mpitrain.errors import printable
from mpitrain.monitoring.records import rate_text

STYLES = 18  # line styles in page.css and page.js: six colours, each solid, dashed and dotted


class Html(str):
    """A text that is HTML made by this program and is not escaped."""

    __slots__ = ()


class BestCell(str):
    """The content of a table's cell that is marked as the best of its column."""

    __slots__ = ()


def safe(text: str, keep: str = "") -> Html:
    """The text as HTML, for elements and quoted attributes; control characters except `keep` are made visible."""
    return text if isinstance(text, Html) else Html(escape(printable(text, keep)))


def join(parts: Iterable[str]) -> Html:
    """Concatenate the parts."""
    return Html("".join(map(safe, parts)))


def show(value: object, form: str = "number") -> str:
    """A value as text; `form` is "number", "count", "percent", "bytes", "seconds" or "text"."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float) or form == "text":
        return str(value)
    if form == "percent":
        return f"{value:.2%}"
    if form == "bytes":
        return _scaled(value, ("B", "kB", "MB", "GB", "TB", "PB"))
    if form == "seconds":
        return duration(value)
    return rate_text(value) if form == "count" else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Format seconds as 1.25 s, 48 s, 3 min 20 s or 2 h 5 min."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def brief(seconds: float) -> str:
    """Format seconds as `duration` does, and less than one second as 1.25 ms or 48 µs."""
    return duration(seconds) if seconds >= 1 or not seconds else _scaled(seconds * 1e9, ("ns", "µs", "ms"))


def _scaled(value: float, units: tuple[str, ...]) -> str:
    unit = 0
    while abs(value) >= 999.5 and unit < len(units) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value if abs(value) >= 0.05 else 0:.3g} {units[unit]}"


def run_name(style: int, name: str, marks: Sequence[str] = ()) -> Html:
    """A run's name with a sample of the line with which it is drawn, and its marks."""
    badges = "".join(f' <span class="mark">{safe(mark)}</span>' for mark in marks)
    return Html(
        f'<span class="run" data-run="{style}"><svg class="swatch s{style % STYLES}" width="26" height="10"'
        f' aria-hidden="true"><path d="M1 5H25"/></svg><span class="name">{safe(name)}</span></span>{badges}'
    )


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> Html:
    """A table in a scrolling frame; empty if there are no rows. The first cell of each row is its header; other cells
    are marked if they are a BestCell. `kind` is the table's CSS class."""
    if not rows:
        return Html("")
    head = "".join(f'<th scope="col">{safe(cell)}</th>' for cell in header)
    body = "".join(f'<tr><th scope="row">{safe(first)}</th>{"".join(map(_cell, rest))}</tr>' for first, *rest in rows)
    return Html(
        f'<div class="frame" tabindex="0" role="group" aria-label="{safe(caption)}"><table class="{kind}">'
        f"<caption><span>{safe(caption)}</span></caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(content: str) -> str:
    if isinstance(content, BestCell):
        return f'<td class="best">{safe(content)}<span class="said"> best</span></td>'
    return f"<td>{safe(content)}</td>"


def bars(title: str, rows: Sequence[tuple[int, str, float]], form: str) -> Html:
    """Horizontal bars from (style, name, value), scaled to the largest value or to 100 %; nothing if all are 0."""
    most = 1.0 if form == "percent" else max((value for _, _, value in rows), default=0.0)
    if not any(value for _, _, value in rows):
        return Html("")
    body = "".join(
        f'<tr class="s{style % STYLES}"><th scope="row">{safe(name)}</th><td class="bar"><svg aria-hidden="true">'
        f'<rect width="{100 * min(max(value / most, 0.0), 1.0):.1f}%"/></svg></td><td>{show(value, form)}</td></tr>'
        for style, name, value in rows
    )
    return Html(
        f'<figure class="bars"><figcaption>{safe(title)}</figcaption><table><tbody>{body}</tbody></table></figure>'
    )
