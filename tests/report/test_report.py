"""The report: what it reads out of run folders in any state, its tables, and its page without a browser."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from mpitrain.__main__ import main
from mpitrain.checkpoint.lease import Lease
from mpitrain.report import series, tables
from mpitrain.report.html import show
from mpitrain.report.page import page
from mpitrain.report.pictures import draw
from mpitrain.report.runs import StoredRun, read_runs

from .folders import curve, ended, every_kind, start, write_run


@pytest.fixture
def runs(tmp_path: Path) -> list[StoredRun]:
    """One of every kind."""
    return read_runs(every_kind(tmp_path))


def test_the_state_of_a_run_is_told(runs: list[StoredRun]) -> None:
    """Finished, killed in mid-line, resumed."""
    assert [run.marks for run in runs] == [[], [], [], ["unfinished", "1 unreadable line"], ["resumed"]]
    assert [run.finished for run in runs] == [True, True, True, False, True]
    assert (
        runs[3].results["algorithm"] == "easgd" and runs[3].results["test_error"] == runs[3].records[-1]["test_error"]
    )


def test_what_a_resume_made_void_is_left_out(runs: list[StoredRun]) -> None:
    """It was killed after 6 epochs and went on from a checkpoint of 3."""
    assert [record["epoch"] for record in runs[4].events("evaluate")] == [1, 2, 3, 4, 5, 6, 7, 8]
    seconds = [point.seconds for point in series.train_loss(runs[4])]
    assert seconds == sorted(seconds)


def test_the_summary_of_an_earlier_part_is_not_taken(tmp_path: Path) -> None:
    """A finished run was taken up again and killed; and one that a signal stopped."""
    records = curve(3)
    folder = write_run(tmp_path / "again", records=records, summary=ended(records))
    with (folder / "metrics.jsonl").open("a") as log:
        log.write(json.dumps(start(resumed=True, samples=3000)) + "\n")
    stopped = write_run(tmp_path / "stopped", records=records, summary=ended(records, exit_reason="stopped"))
    again, halted = read_runs([folder, stopped])
    assert again.marks == ["unfinished", "resumed"] and again.summary is None
    assert halted.marks == ["stopped"] and not halted.finished


def test_names_tell_runs_apart(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "a" / "run"), write_run(tmp_path / "b" / "run")]
    assert [run.name for run in read_runs(folders)] == ["a/run", "b/run"]
    assert [run.name for run in read_runs(folders[:1])] == ["run"]


def no_metrics(folder: Path) -> str:
    (folder / "metrics.jsonl").unlink()
    return "metrics.jsonl"


def rubbish(folder: Path) -> str:
    (folder / "metrics.jsonl").write_bytes(b"\xff\x00\n[1]\n")
    return "metrics.jsonl"


def bad_summary(folder: Path) -> str:
    (folder / "summary.json").write_text("{")
    return "summary.json"


def list_summary(folder: Path) -> str:
    (folder / "summary.json").write_text("[]")
    return "summary.json"


def bad_config(folder: Path) -> str:
    (folder / "config.toml").write_text("a = ")
    return "config.toml"


def no_config(folder: Path) -> str:
    (folder / "config.toml").unlink()
    return "config.toml"


@pytest.mark.parametrize("damage", [no_metrics, rubbish, bad_summary, list_summary, bad_config, no_config])
def test_a_folder_that_is_no_run_is_named(
    damage: Callable[[Path], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, status 2, nothing written."""
    folder = write_run(tmp_path / "bad")
    named = damage(folder)
    good = write_run(tmp_path / "good")
    assert main(["report", str(good), str(folder), "--out", str(tmp_path / "page.html")]) == 2
    told = capsys.readouterr()
    assert told.err.count("\n") == 1 and named in told.err and "bad" in told.err
    assert not (tmp_path / "page.html").exists() and told.out == ""


@pytest.mark.parametrize("words, named", [(["nowhere"], "nowhere"), (["run", "run"], "twice")])
def test_wrong_words_are_one_line(
    words: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert main(["report", *words]) == 2
    assert named in capsys.readouterr().err
    assert main(["report", "run", "--out", "none/page.html"]) == 2
    assert "none" in capsys.readouterr().err


@pytest.mark.parametrize("records", [[], [start()], [start(), {"event": "train", "samples": "x", "seconds": None}]])
def test_a_run_that_has_just_begun_has_a_report(records: list[dict[str, Any]], tmp_path: Path) -> None:
    folder = write_run(tmp_path / "young", records=records)
    assert main(["report", str(folder)]) == 0
    assert "unfinished" in (folder / "report.html").read_text()


def test_speed_is_that_of_pieces(tmp_path: Path) -> None:
    """100 samples a second for 40 s, then 50 after a resume that began at 45 s (5 s lie between): by hand."""
    first = [{"event": "train", "samples": 100 * t, "seconds": float(t)} for t in (10, 20, 30, 40)]
    then = [{"event": "train", "samples": 4000 + 50 * t, "seconds": 45.0 + t} for t in (10, 20)]
    records = [start(), *first, start(resumed=True, samples=4000, seconds=45.0), *then]
    (run,) = read_runs([write_run(tmp_path / "run", records=records)])
    assert [point.value for point in series.throughput(run)] == [100, 100, 100, 100, 50, 50]


def test_staleness_is_that_of_the_updates_since_the_last_record(tmp_path: Path) -> None:
    """Ten updates of 1, thirty of 3 (mean 2.5 so far); after a resume counts begin again: five of 2."""
    place = {"event": "train", "seconds": 1.0, "samples": 1}
    records = [start(), place | {"updates": 10, "staleness_mean": 1.0}, place | {"updates": 40, "staleness_mean": 2.5}]
    records += [start(resumed=True, samples=1), place | {"updates": 5, "staleness_mean": 2.0}]
    (run,) = read_runs([write_run(tmp_path / "run", records=records)])
    assert [point.value for point in series.staleness(run)] == [1.0, 3.0, 2.0]


def test_bytes_of_a_resumed_run_add_up(tmp_path: Path) -> None:
    """Counts begin again at each start of the program; a record without one has no point."""
    place = {"event": "train", "seconds": 1.0, "samples": 1}
    records = [start(), place | {"bytes_exchanged": 100}, place, place | {"bytes_exchanged": 300}]
    records += [start(resumed=True, samples=1), place | {"bytes_exchanged": 0}, place | {"bytes_exchanged": 50}]
    (run,) = read_runs([write_run(tmp_path / "run", records=records)])
    assert [point.value for point in series.exchanged(run)] == [100, 300, 300, 350]


def test_the_distribution_of_staleness(runs: list[StoredRun]) -> None:
    points = series.ages_of_updates(runs[0])
    assert [(point.samples, point.value) for point in points] == [(0, 0.125), (1, 0.5), (2, 0.25), (3, 0), (4, 0.125)]


def test_thinning_keeps_ends_and_extremes() -> None:
    points = [series.Point(i, i, (i * 7919) % 1000) for i in range(5000)]
    points[1234] = series.Point(1234, 1234, -5.0)
    points[4321] = series.Point(4321, 4321, 5000.0)
    thinned = series.thin(points)
    assert len(thinned) <= series.MOST + 2 and {points[0], points[-1], points[1234], points[4321]} <= set(thinned)
    assert thinned == sorted(thinned, key=lambda point: point.seconds)


def test_every_plot_is_there(runs: list[StoredRun]) -> None:
    """All test sets, and the exchange's figures of the runs that have them."""
    keys = {plot.key: sorted(plot.curves) for plot in series.plots(runs)}
    exchange = "density", "threshold", "residual_norm", "compression_ratio", "bytes_per_minibatch", "bits_per_element"
    everyone = [0, 1, 2, 3, 4]
    learning = ["train_loss", "test_clean_error", "test_clean_loss", "test_noisy_error", "test_noisy_loss"]
    assert {key: keys.get(key) for key in [*learning, "samples_per_second"]} == dict.fromkeys(
        [*learning, "samples_per_second"], everyone
    )
    assert keys["staleness"] == keys["staleness_histogram"] == [0]
    assert all(keys[name] == [1] for name in exchange) and "test_error" not in keys


def test_the_best_of_the_finished_runs_are_marked(tmp_path: Path) -> None:
    """Not the unfinished one's, which is lower; equals are all marked."""
    records = curve(3)
    first = write_run(tmp_path / "a", records=records, summary=ended(records, test_clean_error=0.2, train_loss=1.0))
    second = write_run(tmp_path / "b", records=records, summary=ended(records, test_clean_error=0.1, train_loss=1.0))
    third = write_run(tmp_path / "c", records=curve(50))
    rows = re.findall(r"<tr>.*?</tr>", tables.results(read_runs([first, second, third])))[1:]
    best = [re.findall(r'class="best">([^<]*)<', row) for row in rows]
    assert "20.00%" not in best[0] and "10.00%" in best[1] and best[2] == []
    assert "1" in best[0] and "1" in best[1]
    assert 'class="best"' not in tables.results(read_runs([first]))


def test_the_best_is_that_of_one_data_set(tmp_path: Path) -> None:
    """Of two runs of each of two corpora; the lowest error of all is the best of its own alone."""
    folders = []
    for name, error in (("a", 0.3), ("b", 0.4), ("c", 0.1), ("d", 0.2)):
        data = {"path": "speech" if name in "ab" else "digits"}
        summary = ended(curve(3), test_clean_error=error)
        folders.append(write_run(tmp_path / name, records=curve(3), summary=summary, data=data))
    html = tables.results(read_runs(folders))
    marked = [
        text for text in re.findall(r'class="best">([^<]*)<', html) if text in ("30.00%", "40.00%", "10.00%", "20.00%")
    ]
    assert marked == ["30.00%", "10.00%"] and "on the same data" in html
    assert tables.results(read_runs([folders[0], folders[2]])).count('class="best"') == 0


def test_no_staleness_is_no_zero(tmp_path: Path) -> None:
    """Beside a run of a server, `easgd` and the like have a dash."""
    ages = {"asgd": {"staleness_mean": 1.5, "staleness_max": 4}, "easgd": {"staleness_mean": 0.0, "staleness_max": 0}}
    folders = [
        write_run(tmp_path / name, name, curve(3), ended(curve(3), algorithm=name, **told))
        for name, told in ages.items()
    ]
    html = tables.results(read_runs(folders))
    assert "<td>1.5</td><td>4</td>" in html and "<td>–</td><td>–</td>" in html and "Staleness, at most" in html


def test_a_stopped_run_has_its_last_evaluation(tmp_path: Path) -> None:
    """Its summary has no error, since its last parameters were not evaluated."""
    summary = ended(curve(4), exit_reason="stopped", test_clean_error=None, test_clean_loss=None)
    (run,) = read_runs([write_run(tmp_path / "a", records=curve(4), summary=summary)])
    assert (
        run.results["test_clean_error"] == curve(4)[-1]["test_clean_error"] and run.results["exit_reason"] == "stopped"
    )


def test_a_running_run_says_how_far_it_is(tmp_path: Path) -> None:
    """2 of 8 epochs in 20 s; this process uses its folder. Afterwards it is unfinished."""
    folder = write_run(tmp_path / "a", records=curve(2), training={"epochs": 8.0})
    lease = Lease(folder)
    (run,) = read_runs([folder])
    html = page([run], "a")
    lease.release()
    assert run.marks == ["running, 25%, 60 s left"] and '"whole":true' in html
    assert read_runs([folder])[0].marks == ["unfinished"]


@pytest.mark.parametrize("records", [[], curve(2)[1:]])
def test_a_run_that_has_recorded_no_start_is_running(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    """Its first record is still to come, or was lost."""
    folder = write_run(tmp_path / "a", records=records)
    lease = Lease(folder)
    (run,) = read_runs([folder])
    lease.release()
    assert run.marks == ["running"] and page([run], "a")


def test_minibatch_and_rate_are_in_the_table_and_the_rate_is_drawn(tmp_path: Path) -> None:
    settings = {"minibatch": 77, "learning_rate": 0.123}
    runs = read_runs([write_run(tmp_path / "a", "msgd", curve(3, learning_rate=0.5), training=settings)])
    assert "<td>77</td><td>0.123</td>" in tables.results(runs)
    (rate,) = [plot for plot in series.plots(runs) if plot.key == "learning_rate"]
    assert [point.value for point in rate.curves[0]] == [0.5] * 3


def test_the_training_loss_has_all_records(tmp_path: Path) -> None:
    """Of 100 records and two evaluations. The last, of a hundredth of the samples, is taken with the one before: then
    their mean by samples over an epoch is what the table has."""
    losses = [1 / number for number in range(1, 101)]
    records = [start()]
    for number, loss in enumerate(losses, 1):
        samples = 100 * number if number < 100 else 9901
        records.append(
            {"event": "train", "samples": samples, "seconds": float(number), "epoch": 1.0, "train_loss": loss}
        )
        if number in (50, 100):
            records.append({**records[-1], "event": "evaluate", "test_error": 0.5})
    (run,) = read_runs([write_run(tmp_path / "a", records=records)])
    found = series.train_loss(run)
    assert [point.value for point in found[:98]] == losses[:98] and len(found) == 99
    assert found[-1].value == pytest.approx((100 * losses[98] + losses[99]) / 101) and found[-1].samples == 9901


def test_only_keys_that_differ_are_listed(tmp_path: Path) -> None:
    runs = read_runs(
        [
            write_run(tmp_path / "a", "msgd", training={"learning_rate": 0.1}, model={"width": 2.0}),
            write_run(tmp_path / "b", "msgd", training={"learning_rate": 0.2}, model={"width": 2.0}),
        ]
    )
    assert tables.differences(runs) == [("training.learning_rate", [0.1, 0.2])]
    assert "All runs have the same" in tables.configuration([runs[0], runs[0]])


@pytest.mark.parametrize(
    "value, form, text",
    [
        (None, "percent", "–"),
        (0.01671, "percent", "1.67%"),
        (2_567_890, "bytes", "2.57 MB"),
        (999_600, "bytes", "1 MB"),
        (8, "bytes", "8 B"),
        (0.0002, "bytes", "0 B"),
        (43_140, "count", "43,140"),
        (1.2345, "seconds", "1.23 s"),
        (200, "seconds", "3 min 20 s"),
        (7500, "seconds", "2 h 5 min"),
        (float("1e-7"), "number", "1e-07"),
        (True, "number", "True"),
    ],
)
def test_values_as_text(value: Any, form: str, text: str) -> None:
    assert show(value, form) == text


def test_the_page_needs_nothing_else_and_is_small(tmp_path: Path) -> None:
    """Ten long runs of an algorithm with many figures: under 1 MB; no address, no script or style from elsewhere."""
    sent = dict.fromkeys(("density", "threshold", "residual_norm", "bytes_per_minibatch"), 0.123456789)
    records = curve(1500, 123.456, staleness_mean=1.23456, compression_ratio=3.3, bits_per_element=9.87654, **sent)
    folders = [write_run(tmp_path / f"run-{i}", records=records, summary=ended(records)) for i in range(10)]
    text = page(read_runs(folders), "Ten")
    assert len(text.encode()) < 1_000_000
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|\bsrc=|@import|url\(|<iframe|<object", text)


def test_a_page_is_written_anew_until_all_runs_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first two times it loads itself anew; the last page does not."""
    folder, pages = write_run(tmp_path / "run", records=curve(2)), list[str]()

    def sleep(seconds: float) -> None:
        assert seconds == 7
        pages.append((folder / "report.html").read_text())
        records = curve(2 + len(pages))
        summary = ended(records) if len(pages) == 2 else None
        shutil.rmtree(folder)
        write_run(folder, records=records, summary=summary)

    monkeypatch.setattr("mpitrain.report.command.time.sleep", sleep)
    assert main(["report", str(folder), "--watch", "7"]) == 0
    pages.append((folder / "report.html").read_text())
    assert ['data-watch="7"' in text for text in pages] == [True, True, False]
    assert ["unfinished" in text for text in pages] == [True, True, False]
    assert "every 7 s" in capsys.readouterr().out


def test_watching_ends_on_an_interrupt_with_a_page_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "run", records=curve(2))

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mpitrain.report.command.time.sleep", interrupt)
    assert main(["report", str(folder), "--watch"]) == 0
    assert "data-watch" not in (folder / "report.html").read_text().partition("<head>")[0]


def test_a_killed_run_is_watched_for_ten_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From when no process uses its folder: it may be started again."""
    folder, waited, lease = write_run(tmp_path / "run", records=curve(2)), list[float](), Lease(tmp_path / "run")

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 8:
            lease.release()

    monkeypatch.setattr("mpitrain.report.command.time.sleep", sleep)
    assert main(["report", str(folder), "--watch", "100"]) == 0
    assert waited == [100] * (7 + 6)


@pytest.mark.parametrize("seconds", ["0", "-3", "3601"])
def test_odd_times_of_watching_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    assert main(["report", str(write_run(tmp_path / "run")), "--watch", seconds]) == 2
    assert "--watch" in capsys.readouterr().err


def test_simulated_runs_are_named_and_compared_apart(tmp_path: Path) -> None:
    """Their seconds are not those of the machine on which the others ran."""
    folders = []
    for number, fields in enumerate([{}, {}, {"simulated": True}, {"simulated": True, "phantom": True}]):
        records = curve(2, speed=100.0 * (number + 1))
        folders.append(write_run(tmp_path / f"run-{number}", records=records, summary=ended(records, **fields)))
    runs = read_runs(folders)
    assert [run.marks for run in runs] == [[], [], ["simulated"], ["phantom"]]
    rows = re.findall("<tr>.*?</tr>", tables.results(runs))[-4:]
    assert ["200<span" in rows[1], "400<span" in rows[3]] == [True, True], rows
    assert "300<span" not in rows[2] and "simulated ones apart, are marked" in tables.results(runs)


def test_late_evaluations_do_not_take_the_training_back(tmp_path: Path) -> None:
    """Which are written at its end, of earlier moments. The training loss over an epoch is with them alone."""
    records = curve(4)
    for each in records:
        each |= {"train_loss": 9.0} if each["event"] == "train" else {}
    late = records[:1] + [each for event in ("train", "evaluate") for each in records if each["event"] == event][:-1]
    results = tables.results_of(read_runs([write_run(tmp_path / "run", records=late)])[0])
    assert (results["epoch"], results["samples"]) == (4, 4000)
    assert [results[key] == records[-3][key] for key in ("train_loss", "test_error")] == [True, True]


def test_names_cannot_break_the_page(runs: list[StoredRun]) -> None:
    text = page(runs, runs[4].name)
    assert "<b>" not in text and "&lt;b&gt;resumed &amp;" in text


@pytest.mark.parametrize("form, magic", [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_plots_as_files(form: str, magic: bytes, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folders = [str(folder) for folder in every_kind(tmp_path)[:2]]
    words = ["--out", str(tmp_path / "page.html"), "--plots", str(tmp_path / "plots"), "--format", form]
    assert main(["report", *folders, *words]) == 0
    drawn = list((tmp_path / "plots").iterdir())
    assert {path.stem for path in drawn} >= {"train_loss", "test_noisy_error", "staleness_histogram", "density"}
    assert all(path.read_bytes().startswith(magic) for path in drawn)


def test_a_plot_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole, and nothing beside it."""
    figure = pytest.importorskip("matplotlib.figure")
    words = ["report", str(write_run(tmp_path / "run")), "--out", str(tmp_path / "page.html")]
    words += ["--plots", str(tmp_path / "plots")]
    assert main(words) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "plots").iterdir()}

    def half(of: object, path: Path, **more: object) -> None:
        path.write_bytes(b"half")
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(figure.Figure, "savefig", half)
    assert main(words) == 2
    assert re.search(r"--plots: \S+\.png: No space left on device\n", capsys.readouterr().err)
    assert {path.name: path.read_bytes() for path in (tmp_path / "plots").iterdir()} == before


def test_the_names_of_many_runs_cover_no_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stand below the axes, which keep their size."""
    figures, found = pytest.importorskip("matplotlib.figure"), list[Any]()
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, path, **more: path.touch() or found.append(figure))
    draw(read_runs([write_run(tmp_path / f"{'long' * 20}-{number}") for number in range(40)]), tmp_path, "png")
    figure = found[0]
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert figure.legends[0].get_window_extent().y1 < axes.get_tightbbox().y0 and axes.get_position().height > 0.5


def test_plots_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["report", str(write_run(tmp_path / "run")), "--plots", str(tmp_path / "plots")]) == 2
    assert "matplotlib" in capsys.readouterr().err


def test_the_report_of_a_real_run(launch: Callable[..., Any], tmp_path: Path) -> None:
    """The program's own records have what the report looks for."""
    assert launch(4, "--set", "training.epochs=3", "--out", "run").status == 0
    assert main(["report", str(tmp_path / "run")]) == 0
    (run,) = read_runs([tmp_path / "run"])
    assert run.finished and run.marks == []
    keys = {plot.key for plot in series.plots([run])}
    assert {"train_loss", "test_error", "test_loss", "samples_per_second"} <= keys
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert sum(told.get("staleness_histogram", {"0": told["updates"]}).values()) == told["updates"]


@pytest.mark.parametrize("name", ["asgd", "easgd", "sparse-delta", "allreduce"])
def test_bytes_so_far_become_those_of_the_summary(simulated: Callable[..., Any], tmp_path: Path, name: str) -> None:
    """But for the last notes; of ranks without a master, reckoned from one of them."""
    settings = ("training.epochs=2", f"algorithm.name={name}")
    assert simulated(3, *(part for each in settings for part in ("--set", each)), "--out", "run").status == 0
    (run,) = read_runs([tmp_path / "run"])
    curve = [point.value for point in series.exchanged(run)]
    assert curve == sorted(curve) and run.summary is not None
    assert curve[-1] == pytest.approx(run.summary["bytes_sent"] + run.summary["bytes_received"], rel=0.2)


def test_a_curve_that_comes_to_zero_is_not_drawn_on_a_logarithmic_scale(tmp_path: Path) -> None:
    """It would have no end there: the best run of all would not be seen."""
    perfect = curve(3)
    perfect[-1] |= {"test_noisy_error": 0.0}
    drawn = {plot.key: plot.log for plot in series.plots(read_runs([write_run(tmp_path / "run", records=perfect)]))}
    assert drawn["test_noisy_error"] is False and drawn["test_clean_error"] is True


def test_counts_since_a_resume_are_of_the_samples_since_then(tmp_path: Path) -> None:
    """5 MB over the last 2000 of 8000 samples; 3 of the last 20 s."""
    records = curve(8)
    before = {"resumed_samples": 6000, "resumed_seconds": 60.0, "server_busy_seconds": 3.0}
    (run,) = read_runs([write_run(tmp_path / "run", records=records, summary=ended(records, **before))])
    text = tables.totals([run])
    assert show(2500.0, "bytes") in text and show(3.0 / 20, "percent") in text


def test_what_no_run_has_made_is_left_out_of_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `compare --out runs/compare` is of `report runs/*`, and each run's log of `report runs/compare/runs/*`."""
    write_run(tmp_path / "run")
    (tmp_path / "compare").mkdir()
    (tmp_path / "run.log").write_text("mpitrain 0.1.0 starts on 2 ranks\n")
    words = ["report", *map(str, tmp_path.iterdir()), "--out", str(tmp_path / "all.html")]
    assert main(words) == 0 and (tmp_path / "all.html").exists()
    told = capsys.readouterr().out
    assert "compare: left out, not a run folder" in told and "run.log: left out, not a run folder" in told
    assert main(["report", str(tmp_path / "compare")]) == 2
