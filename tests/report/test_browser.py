"""The report's page in headless Chromium: it draws everything, says nothing on the console, and can be read."""

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from mpitrain.report.page import page
from mpitrain.report.runs import read_run, read_runs
from mpitrain.report.series import plots

from .chromium import CHROMIUM, Chromium
from .folders import curve, every_kind, write_run

WINDOWS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium in PATH (Debian: apt-get install chromium)")


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    """One for all tests."""
    with Chromium() as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """The page about runs of every kind, and the number of curves of each plot."""
    folder = tmp_path_factory.mktemp("report")
    runs = read_runs(every_kind(folder))
    (folder / "report.html").write_text(page(runs, "Runs of every kind"))
    return folder / "report.html", {plot.title: len(plot.curves) for plot in plots(runs)}


DRAWN = """Object.fromEntries([...document.querySelectorAll("figure.plot")].map(figure => [
    figure.querySelector("figcaption").textContent,
    [...figure.querySelectorAll("svg .line")].filter(line => line.getBoundingClientRect().width > 20).length]))"""
#: Texts of a plot that lie outside the window, are small, or lie on another.
UNREADABLE = """[...document.querySelectorAll("figure.plot .drawing svg")].flatMap(svg => {
    const texts = [...svg.querySelectorAll("text")].map(text => [text, text.getBoundingClientRect()]);
    const bad = texts.filter(([text, box]) => box.left < 0 || box.right > innerWidth
        || parseFloat(getComputedStyle(text).fontSize) < 11
        || texts.some(([other, o]) => other !== text && box.left < o.right && o.left < box.right
            && box.top < o.bottom - 2 && o.top < box.bottom - 2));
    return bad.map(([text]) => svg.getAttribute("aria-label").slice(0, 40) + ": " + text.textContent);
})"""
#: Elements that stick out of the window, but for those in a frame that scrolls.
WIDE = """[...document.querySelectorAll("body *")].filter(node => !node.closest(".frame, pre, #legend, .said")
    && node.getBoundingClientRect().right > innerWidth + 1).map(node => node.outerHTML.slice(0, 80))"""
#: Contrast of every text with what lies under it, below WCAG's 4.5.
FAINT = """(() => {
    const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(v => v / 255).map(
        v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const ground = node => { for (; node; node = node.parentElement) {
        const c = getComputedStyle(node).backgroundColor; if (!c.startsWith("rgba(0, 0, 0, 0")) return light(c); } };
    return [...document.querySelectorAll("h1, h2, p, th, td, caption, figcaption, label, button, summary, text, .mark")]
        .filter(node => node.textContent.trim() && node.getBoundingClientRect().width).filter(node => {
            const style = getComputedStyle(node), ink = light(node.tagName === "text" ? style.fill : style.color);
            const [low, high] = [ink, ground(node)].sort((a, b) => a - b);
            return (high + 0.05) / (low + 0.05) < 4.5; }).map(node => node.outerHTML.slice(0, 100));
})()"""


@needs_chromium
@pytest.mark.parametrize("width, theme", WINDOWS)
def test_everything_is_drawn_and_can_be_read(
    browser: Chromium, report: tuple[Path, dict[str, int]], width: int, theme: str
) -> None:
    path, curves = report
    browser.complaints.clear()
    browser.open(path, width, theme)
    for axis in ("samples", "epochs", "seconds"):
        browser.evaluate(f"document.querySelector('input[value={axis}]').click()")
        assert browser.evaluate(DRAWN) == curves
        assert browser.evaluate(UNREADABLE) == []
    for button in ("first", "again"):
        browser.evaluate("document.querySelectorAll('.scale').forEach(button => button.click())")
        assert browser.evaluate(UNREADABLE) == [], button
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(WIDE) == [] and browser.evaluate(FAINT) == []
    assert browser.complaints == []


@needs_chromium
@pytest.mark.parametrize("width", [320, 800, 1280])
def test_a_long_name_leaves_room_for_the_figures(browser: Chromium, tmp_path: Path, width: int) -> None:
    """In the table, beside whose first column they scroll; and nothing else sticks out of the window, in which the
    legend of a narrow one scrolls."""
    (tmp_path / "report.html").write_text(page([read_run(write_run(tmp_path / "run"), "long_name_" * 20)], "title"))
    browser.open(tmp_path / "report.html", width)
    assert browser.evaluate("document.querySelector('.results td').getBoundingClientRect().right") < width
    legend = "document.querySelector('#legend button').getBoundingClientRect().right"
    assert width == 320 or browser.evaluate(legend) <= width
    assert browser.evaluate("document.documentElement.scrollWidth") <= width and browser.evaluate(WIDE) == []


@needs_chromium
def test_the_names_of_many_runs_leave_room_for_the_plots(browser: Chromium, tmp_path: Path) -> None:
    """They stay at the top of the window, in which they scroll; on paper all are there."""
    run = write_run(tmp_path / "run")
    (tmp_path / "report.html").write_text(page([read_run(run, f"long-name-{number}") for number in range(80)], "title"))
    browser.open(tmp_path / "report.html", 1280)
    height = "document.querySelector('#controls').clientHeight"
    assert browser.evaluate(height) < 900 / 2
    browser.do("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate(height) > 900 / 2


@needs_chromium
def test_paper_has_all_columns_and_names(browser: Chromium, report: tuple[Path, dict[str, int]]) -> None:
    """It does not scroll; Chromium shrinks a page by up to a third."""
    browser.open(report[0], 740)
    browser.do("Emulation.setEmulatedMedia", media="print")
    rights = "[...document.querySelectorAll('.results td, #legend li')].map(n => n.getBoundingClientRect().right)"
    assert max(browser.evaluate(rights)) <= 740 * 3 / 2


@needs_chromium
def test_a_complaint_would_be_heard(browser: Chromium, tmp_path: Path) -> None:
    """Of the console, of an exception, of an address."""
    (tmp_path / "bad.html").write_text(
        "<img src='http://127.0.0.1:9/x.png'><script>console.error('one'); null.two</script>"
    )
    browser.complaints.clear()
    browser.open(tmp_path / "bad.html", 800)
    said = "\n".join(browser.complaints)
    assert "one" in said and "two" in said and "127.0.0.1:9" in said


@needs_chromium
def test_the_axis_can_be_chosen(browser: Chromium, report: tuple[Path, dict[str, int]]) -> None:
    browser.open(report[0], 1280)
    titles = (
        "[...document.querySelectorAll('figure.plot .drawing svg')].map(svg => svg.lastElementChild && "
        "[...svg.querySelectorAll('text')].map(text => text.textContent))"
    )
    for axis, title in (("samples", "samples"), ("epochs", "epochs"), ("seconds", "wall clock, s")):
        browser.evaluate(f"document.querySelector('input[value={axis}]').click()")
        for texts in browser.evaluate(titles):
            assert title in texts or "staleness, updates" in texts


@needs_chromium
def test_values_are_shown_under_the_pointer_and_by_keys(browser: Chromium, report: tuple[Path, dict[str, int]]) -> None:
    """At the right edge of the test error's plot all runs that got so far are listed with their last values."""
    browser.open(report[0], 1280)
    browser.evaluate("document.querySelector('input[value=epochs]').click()")
    box = browser.evaluate(
        "(() => { const f = document.querySelectorAll('figure.plot .drawing')[1]; f.scrollIntoView({block: 'center'});"
        "const b = f.getBoundingClientRect(); return [b.right, b.top + b.height / 2]; })()"
    )
    browser.do("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] - 16, y=box[1])
    told = browser.evaluate("document.querySelector('.tip').innerText")
    assert "epochs" in told and "asgd" in told and "killed" not in told  # that one ended after five epochs
    last = 100 * (2 * np.exp(-8 / 3) + 0.02) / 4
    assert f"{last:.3g} %" in told
    assert browser.evaluate("document.querySelector('.tip').getBoundingClientRect().right") <= 1280
    assert browser.evaluate("document.querySelector('.tip').clientHeight") < 30 * told.count("\n") + 60
    browser.do("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    assert browser.evaluate("document.querySelector('.tip')") is None
    browser.evaluate("document.querySelectorAll('figure.plot .drawing')[1].focus()")
    for _ in range(3):
        for kind in ("keyDown", "keyUp"):
            browser.do("Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight")
    assert "asgd" in browser.evaluate("document.querySelector('.tip[role=status]').innerText")


@needs_chromium
def test_a_screen_reader_can_name_what_takes_the_focus(browser: Chromium, report: tuple[Path, dict[str, int]]) -> None:
    """No two elements have the same name, and none has no name."""
    browser.open(report[0], 1280)
    nodes = browser.do("Accessibility.getFullAXTree")["nodes"]
    seen = [node for node in nodes if not node["ignored"] and node["role"]["value"] != "RootWebArea"]
    takes = ("focusable", "expanded")
    names = [node["name"]["value"] for node in seen if any(each["name"] in takes for each in node["properties"])]
    assert len(names) > 50 and "" not in names
    assert sorted(names) == sorted(set(names))


@needs_chromium
def test_a_run_can_be_hidden(browser: Chromium, report: tuple[Path, dict[str, int]]) -> None:
    browser.open(report[0], 1280)
    count = "document.querySelectorAll('figure.plot')[0].querySelectorAll('.line').length"
    assert browser.evaluate(count) == 5
    browser.evaluate("document.querySelector('#legend button').click()")
    assert browser.evaluate(count) == 4
    assert browser.evaluate("document.querySelector('#legend button').getAttribute('aria-pressed')") == "false"
    assert browser.evaluate("getComputedStyle(document.querySelector('#legend button')).opacity") == "1"  # can be read
    assert browser.evaluate(FAINT) == []
    browser.evaluate("document.querySelector('#legend button').click()")
    assert browser.evaluate(count) == 5


#: The ticks of the first plot's horizontal axis.
TICKS = """[...document.querySelectorAll("figure.plot .drawing svg")[0].querySelectorAll("text[text-anchor=middle]")]
    .map(text => Number(text.textContent)).filter(value => !isNaN(value))"""
#: Where the first plot's frame is, in the middle of the window.
FRAME = """(() => { const frame = document.querySelector("figure.plot .drawing");
    frame.scrollIntoView({block: "center"});
    const box = frame.getBoundingClientRect(); return [box.left, box.top, box.width, box.height]; })()"""


def drag(browser: Chromium, begin: float, end: float) -> None:
    """Over these fractions of the first plot's inner width, 58 pixels from the left and 14 from the right."""
    left, top, width, height = browser.evaluate(FRAME)
    inner, y = width - 72, top + height / 2
    first, last = left + 58 + begin * inner, left + 58 + end * inner
    browser.do("Input.dispatchMouseEvent", type="mouseMoved", x=first, y=y)
    browser.do("Input.dispatchMouseEvent", type="mousePressed", x=first, y=y, button="left", buttons=1, clickCount=1)
    browser.do("Input.dispatchMouseEvent", type="mouseMoved", x=last, y=y, button="left", buttons=1)
    browser.do("Input.dispatchMouseEvent", type="mouseReleased", x=last, y=y, button="left", clickCount=1)


@needs_chromium
def test_a_part_of_an_axis_can_be_enlarged(browser: Chromium, report: tuple[Path, dict[str, int]]) -> None:
    """By dragging, in all plots against this axis, with the values that lie there; and by keys; `all` ends it."""
    browser.complaints.clear()
    browser.open(report[0], 1280)
    browser.evaluate("document.querySelector('input[value=epochs]').click()")
    whole, shown = browser.evaluate(TICKS), "[...document.querySelectorAll('.whole')].filter(b => !b.hidden).length"
    assert whole[0] == 0 and whole[-1] >= 8 and browser.evaluate(shown) == 0
    drag(browser, 0.5, 0.75)  # 4 to 6 of 8 epochs
    ticks = browser.evaluate(TICKS)
    assert ticks[0] >= 4 and ticks[-1] <= 6 and len(ticks) > 2
    assert browser.evaluate(shown) == len(report[1]) - 1  # but for the distribution of staleness
    assert browser.evaluate(UNREADABLE) == []
    told = "document.querySelector('.tip').innerText"
    left, top, width, height = browser.evaluate(FRAME)
    browser.do("Input.dispatchMouseEvent", type="mouseMoved", x=left + width - 14, y=top + height / 2)
    loss = 2 * np.exp(-6 / 3) + 0.02
    assert f"{loss:.4g}" in browser.evaluate(told) and "killed" not in browser.evaluate(told)
    browser.evaluate("document.querySelector('.whole').click()")
    assert browser.evaluate(TICKS) == whole and browser.evaluate(shown) == 0
    browser.evaluate("document.querySelector('figure.plot .drawing').focus()")
    for key in ("+", "Escape", "Escape"):  # the first Escape may only take the values away
        browser.do("Input.dispatchKeyEvent", type="keyDown", key=key, text=key if key == "+" else "")
        assert (browser.evaluate(shown) > 0) == (key == "+" or browser.evaluate(TICKS) != whole)
    assert browser.evaluate(TICKS) == whole
    drag(browser, 0.5, 0.502)  # a click
    assert browser.evaluate(TICKS) == whole and browser.complaints == []


@needs_chromium
@pytest.mark.parametrize("width, theme", WINDOWS)
def test_a_lost_rank_and_what_followed_can_be_read(
    browser: Chromium, report: tuple[Path, dict[str, int]], width: int, theme: str
) -> None:
    """In two rows of a table that scrolls in its frame; a run that was killed has another."""
    browser.open(report[0], width, theme)
    rows = browser.evaluate("[...document.querySelector('.sessions').rows].map(row => row.innerText.split('\\t'))")
    assert [row[0].strip().rpartition(", ")[2] for row in rows[1:]] == ["1 of 1", "1 of 2", "2 of 2"]
    assert [row[-2:] for row in rows[1:]] == [
        ["–", "killed, left no record"],
        ["2", "rank 0: waited 300 s for rank 2 (a heartbeat); run.deadline sets the seconds"],
        ["–", "finished"],
    ]
    assert browser.evaluate("document.querySelector('.sessions').parentElement.getBoundingClientRect().right") <= width


@needs_chromium
@pytest.mark.parametrize("enlarged", [False, True])
def test_a_run_is_brought_out_where_one_points_at_its_name(
    browser: Chromium, report: tuple[Path, dict[str, int]], enlarged: bool
) -> None:
    """In the legend and in the table of results: its line is thick and in front, the others are faint."""
    browser.open(report[0], 1280)
    if enlarged:
        drag(browser, 0.2, 0.8)
        browser.settle()
    for name in ("#legend button[data-run='1']", ".results .run[data-run='1']"):
        box = browser.evaluate(
            f"(() => {{ const name = document.querySelector(\"{name}\"); name.scrollIntoView({{block: 'center'}});"
            "const box = name.getBoundingClientRect(); return [box.left + 5, box.top + 5]; })()"
        )
        browser.do("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
        browser.settle()
        groups = browser.evaluate(
            "[...document.querySelectorAll('figure.plot')[0].querySelectorAll('g[data-run]')].map(g => "
            "[g.dataset.run, getComputedStyle(g).opacity, getComputedStyle(g.querySelector('.line')).strokeWidth])"
        )
        assert groups[-1] == ["1", "1", "3.5px"] and {tuple(rest) for _, *rest in groups[:-1]} == {("0.18", "2px")}
        browser.do("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
        assert browser.evaluate("document.querySelectorAll('.faded, .lit').length") == 0
    for place in ("button .run", "button"):  # from the name to the edge of its button
        corner = f"document.querySelector(\"#legend {place}[data-run='1']\").getBoundingClientRect()"
        x, y = browser.evaluate(f"[{corner}.left + 1, {corner}.top + 1]")
        browser.do("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        browser.settle()
        assert browser.evaluate("document.querySelectorAll('.lit').length") > 0, place


@needs_chromium
def test_a_plot_can_be_saved(browser: Chromium, report: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    """As an SVG that needs no style: it shows the curves in their colours, and their names."""
    browser.complaints.clear()
    browser.open(report[0], 1280)
    text = browser.evaluate(
        "(() => { let made, name; const old = URL.createObjectURL; URL.createObjectURL = blob => { made = blob; "
        "return old(blob); }; HTMLAnchorElement.prototype.click = function () { name = this.download; };"
        "document.querySelector('.save').click(); return made.text().then(text => name + '\\n' + text); })()"
    )
    name, _, picture = text.partition("\n")
    assert name == "train_loss.svg"
    root = ElementTree.fromstring(picture)
    lines = [node.get("stroke") for node in root.iter() if node.get("class") == "line"]
    assert len(lines) == 5 == len(set(lines)) and all(str(colour).startswith("rgb") for colour in lines)
    texts = [node.text for node in root.iter() if node.tag.endswith("text")]
    assert "Training loss" in texts and "<b>resumed & \"odd'" in texts and "wall clock, s" in texts
    (tmp_path / name).write_text(picture)
    browser.open(tmp_path / name, 800)
    assert browser.complaints == []


@needs_chromium
def test_a_watched_page_comes_again_with_what_was_chosen(browser: Chromium, tmp_path: Path) -> None:
    """The axis, the part of it, the hidden run and the scale stay, while the curves grow, and whenever it is loaded."""
    folder = write_run(tmp_path / "run", records=curve(4))
    out = tmp_path / "watched.html"
    out.write_text(page(read_runs([folder]), "watched", watch=1))
    browser.complaints.clear()
    browser.open(out, 1280)
    browser.evaluate("document.querySelector('input[value=epochs]').click()")
    browser.evaluate("document.querySelector('.scale').click()")
    drag(browser, 0.5, 1.0)
    browser.do("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    scale = "document.querySelector('.scale').getAttribute('aria-pressed')"
    before = browser.evaluate(scale), browser.evaluate(TICKS)
    lines = [json.dumps(record) + "\n" for record in curve(8)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    out.write_text(page(read_runs([folder]), "grown", watch=60))
    axis = "document.querySelector('input[name=axis]:checked').value"
    for _ in range(2):
        drawn = "document.querySelectorAll('.line').length > 0"
        browser.evaluate_until(f"document.title === 'grown' && {drawn} && !window.seen")
        after = browser.evaluate(scale), browser.evaluate(TICKS)
        assert browser.evaluate(axis) == "epochs" and after == before and browser.complaints == []
        browser.evaluate("window.seen = true; location.reload()")


@needs_chromium
def test_extreme_values_are_drawn(browser: Chromium, tmp_path: Path) -> None:
    """Axes have few ticks even where numbers are too coarse for the steps between them: the page once never ended."""
    records = curve(4, train_loss=-1e20)
    records[3]["train_loss"] -= 16384
    records = [{**record, "test_clean_loss": 10.0 ** (40 * k - 150)} for k, record in enumerate(records)]
    (tmp_path / "report.html").write_text(page(read_runs([write_run(tmp_path / "run", records=records)]), "extreme"))
    browser.complaints.clear()
    browser.open(tmp_path / "report.html", 1280)
    assert browser.evaluate("Math.max(...[...document.querySelectorAll('svg')].map(s => s.children.length))") < 100
    assert browser.complaints == []


#: Linear RGB as protanopes, deuteranopes and tritanopes see it (Machado, Oliveira & Fernandes 2009, severity 1).
SIGHTS = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def oklab(linear: np.ndarray) -> np.ndarray:
    """Perceptual coordinates of linear RGB (B. Ottosson, 2020)."""
    cones = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    lab = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return np.cbrt(np.clip(linear, 0, 1) @ cones.T) @ lab.T


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("sight", SIGHTS)
def test_the_colours_of_runs_can_be_told_apart(theme: str, sight: str) -> None:
    """By every eye: at least 0.12 in OKLab between any two (0.02 is just visible); 3 : 1 or more with the ground."""
    style = (files("mpitrain.report") / "page.css").read_text()
    half = style.split("prefers-color-scheme: dark")[theme == "dark"]
    codes = [re.search(rf"--{name}: #(\w{{6}})", half) for name in ("ground", "c0", "c1", "c2", "c3", "c4", "c5")]
    rgb = np.array([[int(code[1][i : i + 2], 16) / 255 for i in (0, 2, 4)] for code in codes if code])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    light = linear @ [0.2126, 0.7152, 0.0722] + 0.05
    assert (np.maximum(light[1:], light[0]) / np.minimum(light[1:], light[0])).min() >= 3
    seen = oklab(linear[1:] @ SIGHTS[sight].T)
    apart = np.linalg.norm(seen[:, None] - seen[None], axis=-1)[np.triu_indices(6, 1)]
    assert len(rgb) == 7 and apart.min() >= 0.12
