"""Tables and bars as HTML, and numbers as readers want them."""

from collections.abc import Sequence
from html import escape
from typing import Any

STYLES = 18  # line styles in page.css and page.js: six colours, each solid, dashed and dotted


def show(value: Any, form: str = "number") -> str:
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
    return f"{value:,.0f}" if form == "count" else f"{value:.4g}"


def duration(seconds: float) -> str:
    """1.25 s, 48 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def _scaled(value: float, units: tuple[str, ...]) -> str:
    place = 0
    while abs(value) >= 999.5 and place < len(units) - 1:
        value, place = value / 1000, place + 1
    return f"{value if abs(value) >= 0.05 else 0:.3g} {units[place]}"


def swatch(style: int) -> str:
    """A piece of the line that a run is drawn with."""
    return (
        f'<svg class="swatch s{style % STYLES}" width="26" height="10" aria-hidden="true">'
        '<path d="M1 5H25"/></svg>'
    )  # fmt: skip


def run_name(style: int, name: str, marks: Sequence[str] = ()) -> str:
    """A run's swatch, name and marks."""
    badges = "".join(f' <span class="mark">{escape(mark)}</span>' for mark in marks)
    return f'<span class="run">{swatch(style)}<span class="name">{escape(name)}</span></span>{badges}'


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """A table whose cells are HTML already; the first of each row heads it. It scrolls in a frame of its own."""
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    body = "".join(f'<tr><th scope="row">{first}</th>{"".join(map(_cell, rest))}</tr>' for first, *rest in rows)
    return (
        f'<div class="frame" tabindex="0" role="group" aria-label="{escape(caption)}"><table class="{kind}">'
        f"<caption><span>{escape(caption)}</span></caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(content: str) -> str:
    return content if content.startswith("<td") else f"<td>{content}</td>"


def bars(title: str, rows: Sequence[tuple[int, str, float, str]], most: float = 0.0) -> str:
    """Horizontal bars from (style, name as HTML, value, value as text), drawn to `most`, or to the greatest."""
    most = most or max((value for _, _, value, _ in rows), default=0) or 1
    body = "".join(
        f'<tr class="s{style % STYLES}"><th scope="row">{name}</th>'
        f'<td class="bar"><span style="width:{100 * value / most:.1f}%"></span></td><td>{escape(text)}</td></tr>'
        for style, name, value, text in rows
    )
    return f'<figure class="bars"><figcaption>{escape(title)}</figcaption><table><tbody>{body}</tbody></table></figure>'
