"""The table of differences of `compare --paired`."""

import json
import sys
from pathlib import Path

import pytest

from mpitrain.__main__ import main
from mpitrain.errors import TrainingFailed
from mpitrain.report.comparison.differences import KEPT, Difference
from mpitrain.report.comparison.launching import carry_out
from mpitrain.report.comparison.matrix import matrix

from .runs import finish

SETTINGS = ["training.epochs=1", "run.threads=1"]
WORDS = ["--target-error", "0.9", "--out", "out", *(word for setting in SETTINGS for word in ("--set", setting))]
TABLE = ["compare", "one.toml", "two.toml", *WORDS, "--table"]
needs_mpirun = pytest.mark.skipif(
    not Path(sys.executable).with_name("mpirun").exists(), reason="this environment has no mpirun of its own"
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two configurations, of which the first has the larger rate."""
    monkeypatch.chdir(tmp_path)
    for name, rate in (("one", 0.1), ("two", 0.001)):
        Path(f"{name}.toml").write_text(f'[algorithm]\nname = "sgd"\n[training]\nlearning_rate = {rate}\n')


def finished(one: list[float], two: list[float], samples: list[int]) -> None:
    """Both trained, and evaluated to these sums of errors."""
    elements = matrix(["one.toml", "two.toml"], [1], [], SETTINGS, Path("out"))
    for element, sums in zip(elements, (one, two), strict=True):
        finish(element, [(10, sum(sums) / sum(samples))])
        (element.folder / KEPT).write_text(json.dumps({"test": {"samples": samples, "loss": sums, "error": sums}}))


def told() -> list[dict[str, object]]:
    return list(json.loads(Path("out/compare.json").read_text())["differences"])


def test_relative_to_a_base_below_0() -> None:
    """A loss such as a negative log-likelihood: less is better there, too."""
    assert Difference(-2.0, -0.5, -1.0, 0.5).relative == (-0.25, -0.5, 0.25)


def test_differences_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """Five wrong of fifty in each block against ten: certain, and a half of the base's."""
    finished([10, 10, 10, 10], [5, 5, 5, 5], [50, 50, 50, 50])
    assert main([*TABLE, "--paired"]) == 0
    line = "| two | 1 | one, 1 | -10.00% (-10.00% to -10.00%) | -50.00% (-50.00% to -50.00%) |"
    for text in (capsys.readouterr().out, Path("out/compare.md").read_text()):
        assert line in [" ".join(found.split()) for found in text.splitlines()]
    assert told() == [
        {
            "configuration": "two",
            "workers": 1,
            "against": ["one", 1],
            "base": pytest.approx(0.2),
            "difference": [pytest.approx(-0.1)] * 3,
        }
    ]
    page = Path("out/report.html").read_text()
    assert "-10.00% (-10.00% to -10.00%)" in page and "drawn anew 10,000 times" in page


def test_nothing_has_no_minus(capsys: pytest.CaptureFixture[str]) -> None:
    finished([10], [10 - 1e-9], [50])
    assert main([*TABLE, "--paired"]) == 0
    assert "+0.00% (+0.00% to +0.00%) | +0.00% (+0.00% to +0.00%)" in capsys.readouterr().out


def test_the_baseline_is_what_others_are_compared_with() -> None:
    finished([10, 0], [5, 0], [50, 50])
    assert main([*TABLE, "--paired", "--baseline", "two"]) == 0
    ((row),) = told()
    assert row["configuration"] == "one" and row["against"] == ["two", 1]
    assert row["difference"] == [pytest.approx(0.05), pytest.approx(0.0), pytest.approx(0.1)]


@pytest.mark.parametrize("name", ["test-noisy", "test_noisy"])
def test_of_another_test_set(name: str) -> None:
    """Called as the part is, or as in the summary's keys, either of which the other table takes."""
    finished([10, 0], [5, 0], [50, 50])
    for config, wrong in (("one", 20), ("two", 30)):
        run, blocks = Path(f"out/runs/{config}-w1-s1"), {"samples": [50, 50], "error": [wrong, wrong]}
        (run / KEPT).write_text(json.dumps({"test": {**blocks, "error": [0, 0]}, "test-noisy": blocks}))
        summary = json.loads((run / "summary.json").read_text()) | {"test_noisy_error": wrong / 50}
        (run / "summary.json").write_text(json.dumps(summary))
    assert main([*TABLE, "--paired", "--test-set", name]) == 0
    ((row),) = told()
    assert row["difference"] == [pytest.approx(0.2)] * 3


def test_without_being_asked_for_there_are_none() -> None:
    finished([10, 10], [5, 5], [50, 50])
    assert main(TABLE) == 0
    assert told() == [] and "95%" not in Path("out/compare.md").read_text()


@pytest.mark.parametrize(
    "content, said",
    [
        ('{"test": {"samples": [50, 49], "error": [1, 1]}}', "was tested on other samples than"),
        ('{"test": {"samples": [50, 50]}}', "not the blocks of an evaluation"),
        ("[", "not the blocks of an evaluation"),
        ("[]", "not the blocks of an evaluation"),
        ("[1]", "not the blocks of an evaluation"),
    ],
)
def test_blocks_that_are_no_pair_are_one_line(content: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the run's folder."""
    finished([10, 10], [5, 5], [50, 50])
    (Path("out/runs/two-w1-s1") / KEPT).write_text(content)
    assert main([*TABLE, "--paired"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and said in err and "two-w1-s1" in err


@pytest.mark.parametrize("deadline", [1e7, 1e300])
def test_a_deadline_of_years_is_waited_for(deadline: float) -> None:
    carry_out([sys.executable, "-c", ""], deadline, "late", "failed")


def test_an_evaluation_that_is_killed_is_no_bad_input() -> None:
    """As for lack of memory."""
    with pytest.raises(TrainingFailed, match="a run: ended by signal 9"):
        carry_out(["sh", "-c", "kill -9 $$"], 60, "late", "a run")


@needs_mpirun
def test_of_trainings(capsys: pytest.CaptureFixture[str]) -> None:
    """On the digits: the difference is that of the summaries' errors, and its interval lies about it."""
    words = ["compare", "one.toml", "two.toml", *WORDS, "--seeds", "1,2", "--deadline", "200", "--paired"]
    assert main(words) == 0, capsys.readouterr().out
    errors = {
        name: sum(
            json.loads(Path(f"out/runs/{name}-w1-s{seed}/summary.json").read_text())["test_error"] / 2
            for seed in (1, 2)
        )
        for name in ("one", "two")
    }
    ((row),) = told()
    mean, low, high = row["difference"]
    assert row["base"] == pytest.approx(errors["one"]) and mean == pytest.approx(errors["two"] - errors["one"])
    assert low < mean < high and mean > 0.1
