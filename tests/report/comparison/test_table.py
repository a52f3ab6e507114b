"""The table's numbers, by hand."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mpitrain.errors import BadInput
from mpitrain.report.comparison.matrix import Element, by_chance, matrix
from mpitrain.report.comparison.table import Spread, cells, comma_separated, markdown, rows, speed_up, time_to, values

from .runs import finish


def evaluations(*pairs: tuple[float, float | None]) -> list[dict[str, Any]]:
    return [{"seconds": seconds, "test_error": error} for seconds, error in pairs]


@pytest.mark.parametrize(
    "pairs, seconds",
    [
        ([(10.0, 0.4), (20.0, 0.2)], 15.0),  # halfway between 0.4 and 0.2
        ([(10.0, 0.3), (20.0, 0.1)], 10.0),
        ([(10.0, 0.1), (20.0, 0.5)], 10.0),  # at once
        ([(10.0, 0.5), (20.0, 0.4)], None),
        ([(10.0, 0.5), (15.0, None), (30.0, 0.3), (40.0, 0.9)], 30.0),
        ([], None),
    ],
)
def test_time_to_an_error_of_030(pairs: list[tuple[float, float | None]], seconds: float | None) -> None:
    found = time_to(evaluations(*pairs), "test_error", 0.3)
    assert found == (None if seconds is None else pytest.approx(seconds))


def test_samples_a_second_are_of_the_whole_run(elements: list[Element]) -> None:
    """A summary has those since the last resume, which may have been of a few samples."""
    finish(elements[4], [(10.0, 0.3)])
    summary = elements[4].folder / "summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "samples_per_second": 1.5}))
    assert rows(elements[4:5], [0.3], "test", "")[0].speed.mean == 100.0


def test_efficiency_as_in_chan_and_lane() -> None:
    """Half the time with twice the workers is 100 %; 68 s against 56 s with two is 41 %."""
    assert speed_up(56.0, 1, 28.0, 2) == (2.0, 1.0)
    assert speed_up(56.0, 1, 68.0, 2) == pytest.approx((0.8235, 0.4118), abs=1e-4)
    assert speed_up(60.0, 2, 20.0, 4) == pytest.approx((3.0, 1.5))


def test_the_standard_deviation_is_that_of_a_sample() -> None:
    assert Spread([1.0, 2.0, 3.0]).std == 1.0 and Spread([1.0, 2.0, 3.0]).mean == 2.0
    assert Spread([4.0]).std is None and Spread([]).mean is None


@pytest.fixture
def elements(tmp_path: Path) -> list[Element]:
    """easgd with 1 and 2 workers, two seeds each; msgd."""
    return matrix(["easgd", "msgd"], [1, 2], [1, 2], [], tmp_path)


def test_a_table_by_hand(elements: list[Element]) -> None:
    """Errors fall from 0.5 at 10 s to `last` at 20 s, or in a half or a quarter of that."""
    for element, pace, last in zip(elements, [1, 1, 0.5, 0.25, 1, 1], [0.1, 0.3, 0.1, 0.1, 0.1, 0.1], strict=True):
        finish(element, [(10 * pace, 0.5), (20 * pace, last)])
    one, two, alone = rows(elements, [0.3, 0.2], "test", "")
    assert one.reached[0.3].of_seeds == pytest.approx([15.0, 20.0])
    assert two.reached[0.3].mean == pytest.approx((7.5 + 3.75) / 2)
    assert two.reached[0.3].speed_up == pytest.approx(17.5 / 5.625)
    assert two.reached[0.3].efficiency == pytest.approx(17.5 / 5.625 / 2)
    assert one.reached[0.2].of_seeds == [pytest.approx(17.5), None] and two.reached[0.2].speed_up is None
    assert one.error.mean == pytest.approx(0.2) and one.error.std == pytest.approx(0.2 / 2**0.5)
    assert (alone.configuration, alone.workers, alone.ranks) == ("msgd", 1, 1)
    header, lines = cells([one, two, alone])
    assert header[3:8] == ["minibatch", "rate", "runs", "time to 30%", "speed-up (efficiency)"]
    assert lines[0][6:] == ["17.5 s ± 3.54 s", "1.00 (100%)", "17.5 s, 1 of 2", "–", "100", "20.00% ± 14.14%"]
    assert lines[0][3:5] == ["32", "0.1"]
    assert lines[1][7] == "3.11 (156%)"
    text = markdown(*cells([one, two, alone]))
    assert len({len(line) for line in text.splitlines()}) == 1 and text.count("\n") == 5
    assert comma_separated([one, two, alone]).count("\n") == 7 and values([one])[0]["targets"][1]["seconds"][1] is None


def test_what_differs_because_nobody_set_it(tmp_path: Path) -> None:
    """The algorithms' own rates and minibatches; not where all have one, a file has its own, or a preset is chosen."""
    assert [line.partition(" differs")[0] for line in said("easgd", "allreduce", to=tmp_path)] == [
        "training.minibatch",
        "training.learning_rate",
    ]
    (tmp_path / "own.toml").write_text("[training]\nlearning_rate = 0.7\n[algorithm]\nname = 'msgd'\n")
    rate = "training.learning_rate=0.3"
    assert [line.partition(" differs")[0] for line in said("easgd", "allreduce", to=tmp_path, settings=[rate])] == [
        "training.minibatch"
    ]
    own = str(tmp_path / "own.toml")
    (line,) = said("easgd", own, to=tmp_path, settings=["training.minibatch=32"])
    assert "nobody set it for easgd: easgd 0.1, own 0.7; --set training.learning_rate=" in line
    assert said(own, to=tmp_path) == []


def test_what_computes_is_that_of_each_run(tmp_path: Path) -> None:
    """Where "auto" is said; a comparison of rows that computed in different ways says so."""
    elements = matrix(["easgd", "allreduce"], [2], [1], ["model.backend=auto", *SAME], tmp_path)
    for element, backend in zip(elements, ["torch", "numpy"], strict=True):
        finish(element, [(10, 0.5)])
        assert element.state() == "finished"
        path = element.folder / "config.toml"
        path.write_text(path.read_text().replace('backend = "auto"', f'backend = "{backend}"'))
        assert element.state() == "finished"
    (line,) = by_chance(elements)
    told = (
        "model.backend differs between rows, as was best for each: allreduce numpy, easgd torch; --set model.backend=…"
    )
    assert line.startswith(told)


SAME = ["training.minibatch=32", "training.learning_rate=0.1"]


def said(*names: str, to: Path, settings: Sequence[str] = ()) -> list[str]:
    return list(by_chance(matrix(list(names), [2], [1], list(settings), to)))


def test_a_baseline_of_another_configuration(elements: list[Element]) -> None:
    for element in elements:
        finish(element, [(10, 0.5), (20 if element.configuration == "msgd" else 30, 0.1)])
    one, two, alone = rows(elements, [0.1], "test", "msgd")
    assert one.reached[0.1].speed_up == pytest.approx(2 / 3) and two.reached[0.1].efficiency == pytest.approx(1 / 3)
    assert alone.reached[0.1].speed_up == 1.0


def test_what_is_missing_is_said(elements: list[Element]) -> None:
    """One of two seeds; no run at all; a run that another launcher's MPI split into single ranks."""
    finish(elements[0], [(10, 0.5), (20, 0.1)])
    finish(elements[2], [(10, 0.5), (20, 0.1)], ranks=1)
    _, lines = cells(rows(elements, [0.3], "test", ""))
    assert lines[0][5] == "1 of 2" and lines[1][5] == "0 of 2" and lines[1][6:] == ["–"] * 4
    assert elements[2].state() == "unfinished" and elements[3].state() == "missing"
    assert lines[0][6] == "15 s, 1 of 2" and lines[0][7] == "–"  # no speed-up of the seeds that happen to be there


def test_a_first_evaluation_below_the_target_is_an_upper_bound(elements: list[Element]) -> None:
    """Without a speed-up from or to it; the other target was reached between two evaluations."""
    for element, first in zip(elements, [0.5, 0.5, 0.5, 0.3, 0.2, 0.5], strict=True):
        finish(element, [(10, first), (20, 0.1)])
    found = rows(elements, [0.3, 0.2], "test", "")
    _, lines = cells(found)
    assert [line[6:10] for line in lines[:2]] == [
        ["15 s ± 0 s", "1.00 (100%)", "17.5 s ± 0 s", "1.00 (100%)"],
        ["≤ 12.5 s", "–", "16.2 s ± 1.77 s", "1.08 (54%)"],
    ]
    told = [target for row in values(found)[:2] for target in row["targets"]]
    assert [each["at_most"] for each in told] == [False, False, True, False] and told[2]["speed_up"] is None
    assert rows(elements, [0.3], "test", "msgd")[0].reached[0.3].speed_up is None


def test_the_numbers_of_seeds_are_in_their_order(elements: list[Element]) -> None:
    """Also where one is missing."""
    finish(elements[1], [(10, 0.5), (20, 0.1)])
    told, nothing, _ = values(rows(elements, [0.3], "test", ""))
    assert (told["seeds"], told["final_errors"], told["final_error_mean"]) == ([1, 2], [None, 0.1], 0.1)
    assert told["targets"][0]["seconds"] == [None, 15.0] and told["samples_per_second_mean"] == 100.0
    assert nothing["final_errors"] == [None, None] and nothing["final_error_mean"] is None


def test_a_test_set_that_was_not_evaluated_is_named(elements: list[Element]) -> None:
    finish(elements[0], [(10, 0.5)])
    with pytest.raises(BadInput, match="--test-set test-noisy"):
        rows(elements, [0.3], "test-noisy", "")


def test_a_run_that_was_not_evaluated_has_no_say_in_the_figure_of_merit(elements: list[Element]) -> None:
    """As one that ended at its deadline, or diverged; of several finished ones all count."""
    for element in elements[:3]:
        finish(element, [(10, 0.5)], ranks=element.ranks + (element is elements[1]))  # the second is unfinished
    for element in (elements[0], elements[2]):
        path = element.folder / "summary.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "merit": "metres", "test_metres": 7.0}))
    one, two, _ = rows(elements, [0.3], "test", "")
    assert one.merit == "metres" and one.error.values == two.error.values == [7.0]
    finish(elements[3], [(10, 0.5)])
    with pytest.raises(BadInput, match="different figures of merit: error, metres"):
        rows(elements, [0.3], "test", "")


def test_the_matrix(tmp_path: Path) -> None:
    """Ranks follow from the algorithm; one of one rank is there once for each seed. Evaluations take no time from a
    training, unless the user wants them at once."""
    found = matrix(["asgd", "allreduce", "sgd"], [1, 4], [3, 5], ["training.epochs=2"], tmp_path)
    told = [(element.name, element.ranks) for element in found if element.seed == 5]
    assert told == [
        ("asgd-w1-s5", 1),
        ("asgd-w4-s5", 5),
        ("allreduce-w1-s5", 1),
        ("allreduce-w4-s5", 4),
        ("sgd-w1-s5", 1),
    ]
    assert len(found) == 10 and found[0].config["training.epochs"] == 2.0 and found[0].config["training.seed"] == 3
    told = ["run.evaluate_late=true", "algorithm.name=asgd", "training.epochs=2", "training.seed=3"]
    assert found[0].words == tuple(word for one in told for word in ("--set", one))
    (at_once,) = matrix(["sgd"], [1], [], ["run.evaluate_late=false"], tmp_path)
    assert found[0].config["run.evaluate_late"] and not at_once.config["run.evaluate_late"]


def test_a_configuration_is_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "slow.toml"
    path.write_text('[algorithm]\nname = "msgd"\n[training]\nseed = 7\n')
    (element,) = matrix([str(path)], [2], [], [], tmp_path)
    assert (element.name, element.words[0]) == ("slow-w1-s7", str(path))
    with pytest.raises(BadInput, match="second configuration named slow"):
        matrix([str(path), str(path)], [1], [], [], tmp_path)
    with pytest.raises(BadInput, match=r"--set algorithm\.name: msgd"):
        matrix(["easgd", "msgd"], [1], [], ["algorithm.name=easgd"], tmp_path)
    with pytest.raises(BadInput, match=r"esgd.*easgd|esgd.*sgd"):
        matrix(["esgd"], [1], [], [], tmp_path)
