"""The report on run folders that somebody has tampered with: names that are programs, values of other kinds."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpitrain.__main__ import main
from mpitrain.report.page import page
from mpitrain.report.runs import read_runs

from .chromium import CHROMIUM, Chromium
from .folders import curve, ended, every_kind, start, write_run

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium in PATH (Debian: apt-get install chromium)")

#: Each says so in `window.ran` if the browser takes it for a program.
ATTACKS = (
    "<img src=x onerror=ran()>",
    "</script><script>ran()</script>",
    "<!--<script>ran()//",
    "\" onmouseover='ran()' style='background:url(x)",
    "\u2028ran()\u2029</style><svg onload=ran()>",
    "\x1b]0;title\x07\x1b[31mred\u202egnp.exe",
)
HOSTILE = "".join(ATTACKS)


def hostile(folder: Path, name: str) -> Path:
    """A finished run whose every name, text and part is hostile."""
    part = {f"test_{HOSTILE}_error": 0.3, f"test_{HOSTILE}_loss": 1.0, "_error": 0.2, "../../up_error": 0.1}
    records = curve(4, **part)
    records = [record | part for record in records]
    records.insert(2, {"event": "warning", "text": HOSTILE})
    told = {"bytes_by_kind": {HOSTILE: 100, "b": 1}, "staleness_histogram": {"0": 1, "2": 3}, **part}
    run = write_run(folder / name, records=records, summary=ended(records, algorithm=HOSTILE, **told))
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(
        text + f"\n[{json.dumps(HOSTILE)}]\n{json.dumps(HOSTILE)} = {json.dumps(HOSTILE)}\n"
    )
    trace = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": HOSTILE}},
        {"name": HOSTILE, "ph": "X", "pid": 0, "ts": 0, "dur": 5, "args": {"what": HOSTILE, "whom": [1]}},
        {"name": "waiting", "ph": "X", "pid": 0, "ts": 5, "dur": 5, "args": {"what": HOSTILE}},
    ]
    (run / "trace.json").write_text(json.dumps({"traceEvents": trace, "otherData": {"clock": HOSTILE}}))
    stopped = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(stopped | {"exit_reason": HOSTILE}))
    return run


@needs_chromium
def test_nothing_that_a_run_folder_says_is_executed(tmp_path: Path) -> None:
    """Neither at once nor by using every control; the browser has nothing to complain of, and shows the very names."""
    names = ["<img src=x onerror=ran()>", "'\"><svg onload=ran()>\u2028\x1b[2J", "&lt;b&gt;"]
    runs = read_runs([hostile(tmp_path, name) for name in names])
    (tmp_path / "report.html").write_text(page(runs, HOSTILE))
    with Chromium() as browser:
        browser.do("Page.addScriptToEvaluateOnNewDocument", source="window.ran = () => { window.wasRun = true; }")
        browser.open(tmp_path / "report.html", 1280)
        assert browser.evaluate("document.querySelectorAll('figure.plot svg .line').length") > 10
        browser.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        browser.evaluate("document.querySelectorAll('button, input').forEach(each => each.click())")
        browser.evaluate("document.querySelectorAll('#legend button').forEach(each => each.click())")
        browser.evaluate("document.querySelectorAll('.drawing')[0].scrollIntoView({block: 'center'})")
        box = browser.evaluate(
            "(b => [b.right, b.top])(document.querySelectorAll('.drawing')[0].getBoundingClientRect())"
        )
        browser.do("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] - 16, y=box[1] + 40)
        assert names[0] in browser.evaluate("document.querySelector('.tip').textContent")
        assert names[2] in browser.evaluate("document.getElementById('legend').textContent")
        assert browser.evaluate("[...document.querySelectorAll('img, iframe, script:not([id])')].length") == 1
        assert browser.evaluate("window.wasRun") is None
        assert browser.evaluate("document.title").startswith("<img src=x onerror=ran()>")
        widths = "[...document.querySelectorAll('.bar rect')].map(bar => bar.getBoundingClientRect().width)"
        assert max(browser.evaluate(widths)) > 50
        assert max(browser.evaluate(widths.replace(".bar rect", ".timeline .rest"))) > 50
        assert browser.complaints == []
        foreign = "document.body.insertAdjacentHTML('beforeend', '<p id=p style=\"color:red\" onclick=\"ran()\">')"
        browser.evaluate(f"{foreign}; document.getElementById('p').click()")
        assert browser.evaluate("window.wasRun") is None  # the policy holds what escaping lets through
        assert len(browser.complaints) == 2, browser.complaints


#: Values that are not what a key's should be: texts, lists, numbers that are none.
WRONG = st.one_of(
    st.sampled_from(
        ["x", HOSTILE, [], [1], {}, {"a": 1}, {"99999999999": 1}, {"1": "x"}, True, False, None, "", -1, 0]
    ),
    st.sampled_from([float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 5e-324, 10**400, -(10**400), 2**63]),
    st.floats(),
    st.integers(),
    st.text(max_size=5),
)
SUMMARY = ended(curve(2), staleness_histogram={"0": 3}, bytes_by_kind={"a": 1}, communication_hidden=0.5)
RECORD = {
    "step",
    "samples",
    "epoch",
    "seconds",
    "train_loss",
    "updates",
    "staleness_mean",
    "bytes_exchanged",
    "density",
}
RECORD |= {"event", "resumed", "test_clean_error", "test_clean_loss", "ranks", "_error", "text"}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.sampled_from(sorted({*SUMMARY, "x_error", "resumed_samples", "epoch"})), WRONG, max_size=2),
    st.lists(st.dictionaries(st.sampled_from(sorted(RECORD)), WRONG, max_size=3), max_size=6),
)
def test_any_values_give_a_page_or_a_line(
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    summary: dict[str, Any],
    records: list[dict[str, Any]],
) -> None:
    """Status 0 and a page whose data a browser can parse, or status 2 and one line that names the summary's key."""
    folder = tmp_path_factory.mktemp("mutated")
    place = {"event": "train", "samples": 100, "seconds": 1.0, "epoch": 0.1, "updates": 2, "staleness_mean": 1.0}
    mutated = [start(), *({**place, **each} for each in records), *curve(2)[1:]]
    run = write_run(folder / "run", records=mutated, summary=SUMMARY | summary)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps({"event": "end"})]) + "\n")
    capsys.readouterr()
    status = main(["report", str(run), str(write_run(folder / "sound")), "--out", str(folder / "r.html")])
    told = capsys.readouterr()
    if status == 2:
        assert told.err.count("\n") == 1 and "summary.json: " in told.err
        assert any(f"{key} = " in told.err for key in summary)
    else:
        assert status == 0 and told.err == ""
        text = (folder / "r.html").read_text()
        data = text.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
        json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} in the page's data"))


@pytest.mark.parametrize(
    "key, value",
    [
        ("seconds", "long"),
        ("test_clean_error", [0.1]),
        ("train_loss", float("nan")),
        ("bytes_sent", 10**400),
        ("samples", True),
        ("staleness_histogram", {"0": "many"}),
        ("bytes_by_kind", [1]),
        ("time", [{"rank": 0}]),
        ("time", {"rank": 0}),
        ("exit_reason", 3),
    ],
)
def test_a_summary_with_a_value_of_another_kind_is_named(
    key: str, value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = curve(2)
    run = write_run(tmp_path / "run", records=records, summary=ended(records, **{key: value}))
    assert main(["report", str(run)]) == 2
    told = capsys.readouterr()
    assert told.err.count("\n") == 1 and f"summary.json: {key} = " in told.err and not (run / "report.html").exists()


def test_wrong_values_of_records_are_left_out_and_told(tmp_path: Path) -> None:
    records = curve(3)
    records[1] |= {"seconds": "x", "train_loss": [1]}
    run = write_run(tmp_path / "run", records=records)
    assert main(["report", str(run)]) == 0
    assert "metrics.jsonl: seconds = &quot;x&quot;: expected a number, and 1 more" in (run / "report.html").read_text()


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 100_000, "a = 0x" + "f" * 5000, f"a = 1{'0' * 5000}", f"training.minibatch = 1{'0' * 400}"]
)
def test_a_configuration_that_python_cannot_hold_is_a_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run")
    (run / "config.toml").write_text(text)
    assert main(["report", str(run)]) == 2
    told = capsys.readouterr()
    assert told.err.count("\n") == 1 and "config.toml: " in told.err


def test_deep_and_long_json_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", records=curve(2), summary=ended(curve(2)))
    with (run / "metrics.jsonl").open("a") as log:
        log.write('{"event": ' + "[" * 100_000 + "\n" + '{"event": "end"}\n')
    (run / "summary.json").write_text("[" * 100_000)
    assert main(["report", str(run)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (run / "summary.json").unlink()
    assert main(["report", str(run)]) == 0


def odd_name(folder: Path) -> Path:
    return folder / "red\x1b[31m\x07\r\u202e\udc80"


@pytest.mark.parametrize("words", [["report"], ["report", "missing\x1b[2J\nfolder"], ["evaluate"]])
def test_escapes_in_names_do_not_reach_the_terminal(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what it prints nor a line of bad input holds a control character; the page can be written."""
    monkeypatch.chdir(tmp_path)
    run = write_run(odd_name(tmp_path))
    (tmp_path / "no\x1b[2Jrun").mkdir()
    main([*words, *([str(run), str(tmp_path / "no\x1b[2Jrun")] if len(words) == 1 else [])])
    told = capsys.readouterr()
    said = told.out + told.err
    assert said and all(letter.isprintable() or letter == "\n" for letter in said), repr(said)
    assert told.err.count("\n") <= 1
    assert main(["report", str(run)]) == 0 and "red\\x1b[31m" in (run / "report.html").read_text()


def test_plots_stay_in_their_folder(tmp_path: Path) -> None:
    """A part's name is no path, and no formula of matplotlib's."""
    pytest.importorskip("matplotlib")
    folders = [str(hostile(tmp_path / "runs", name)) for name in ("_$\\frac$", "a$b$")]
    words = ["--out", str(tmp_path / "page.html"), "--plots", str(tmp_path / "deep" / "er" / "plots")]
    assert main(["report", *folders, *words]) == 0
    drawn = {path.name for path in (tmp_path / "deep" / "er" / "plots").iterdir()}
    assert len(drawn) > 6 and sorted(path.name for path in tmp_path.iterdir()) == ["deep", "page.html", "runs"]


def test_a_comparison_shows_no_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a configuration's file name; a bar in it does not break the Markdown table."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a|b\x1b[31m.toml").write_text('[algorithm]\nname = "msgd"\n')
    (tmp_path / "out").mkdir()
    words = ["compare", "a|b\x1b[31m.toml", "--target-error", "0.1", "--out", "out"]
    for last in ("--list", "--table"):
        main([*words, last])
        told = capsys.readouterr()
        assert all(letter.isprintable() or letter in "\n\t" for letter in told.out + told.err), repr(told)
    table = (tmp_path / "out" / "compare.md").read_text()
    assert (
        r"| a\|b\x1b[31m" in table and len({line.replace(r"\|", "").count("|") for line in table.splitlines()[:3]}) == 1
    )


def test_every_kind_of_run_needs_no_inline_style(tmp_path: Path) -> None:
    text = page(read_runs(every_kind(tmp_path)), "all")
    assert "unsafe-inline" not in text and " style=" not in text and "onclick" not in text
