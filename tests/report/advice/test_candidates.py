"""What `advise` tries: the space of every algorithm, rates beside momenta, the order by a seed."""

from dataclasses import replace
from itertools import islice

import pytest

from mpitrain.algorithms import ALGORITHMS
from mpitrain.config import resolve
from mpitrain.errors import BadInput
from mpitrain.report.advice.candidates import Candidates

ADVISED = [name for name, kind in ALGORITHMS.items() if kind.space]


@pytest.mark.parametrize("name", ADVISED)
def test_each_point_of_its_space_is_a_configuration(name: str) -> None:
    """Corners, the middle and points that are drawn; of asgd a quarter has DANA without a momentum."""
    there = Candidates({}, set(), 1)
    axes = there.axes(name)
    points = [tuple(0.999 * (corner >> axis & 1) for axis in range(len(axes))) for corner in range(2 ** len(axes))]
    points += [(0.5,) * len(axes), *(there.point(name, number) for number in range(50))]
    found = [there.candidate(name, point) for point in points]
    loaded = [each for each in found if each is not None]
    assert len(loaded) == len(points) if name not in ("asgd", "block-momentum") else len(loaded) > len(points) / 2
    for each in loaded:
        config = resolve(each.table)
        assert config.algorithm.__struct_config__.tag == name
        assert set(each.settings) <= set(axes)


def test_each_algorithm_has_its_turn_with_its_defaults_first() -> None:
    """Those of asgd are the configuration itself. In one order whenever it is drawn; other points with another seed."""
    first, again, other = (list(islice(Candidates({}, set(), seed).drawn(), 60)) for seed in (1, 1, 2))
    names = [each.algorithm for each in first]
    others = [name for name in ADVISED if name != "asgd"]
    assert names[: len(others)] == others and {*names} == {*ADVISED}
    assert all(not each.point for each in first[: len(others)])
    assert first == again != other


def test_rates_are_multiplied_by_one_minus_the_momentum() -> None:
    """The configuration has twice asgd's default rate, 0.03, and four times its minibatch, 32: others have twice and
    four times theirs. allreduce has 0.02 at 0.9, and so 0.2 without momentum."""
    there = Candidates({"training": {"learning_rate": 0.06, "minibatch": 128}}, set(), 1)
    defaults = there.candidate("allreduce", ())
    assert defaults is not None
    assert defaults.settings == {"training.learning_rate": 0.04, "training.minibatch": 32}
    axes = there.axes("allreduce")
    assert list(axes) == ["training.learning_rate", "training.minibatch", "algorithm.momentum"]
    plain = there.candidate("allreduce", (0.5, 0.3, 0.0))
    assert plain is not None
    assert plain.settings == {
        "algorithm.momentum": 0.0,
        "training.learning_rate": 0.4,
        "training.minibatch": 32,
    }


def test_what_is_set_stays() -> None:
    """A key; an algorithm, which is then the only one."""
    table = {"training": {"minibatch": 16}, "algorithm": {"name": "easgd"}}
    there = Candidates(table, {"algorithm.name", "training.minibatch"}, 1)
    found = list(islice(there.drawn(), 10))
    assert {each.algorithm for each in found} == {"easgd"}
    assert {resolve(each.table).training.minibatch for each in found} == {16}


def test_an_optimizer_goes_with_those_that_take_one() -> None:
    """Its rate is to its default, 0.002, as the configuration's is; others have steps, and rates, of their own."""
    table = {"algorithm": {"name": "allreduce", "optimizer": {"name": "adamw"}}, "training": {"learning_rate": 0.004}}
    there = Candidates(table, set(), 1)
    easgd, asgd = there.candidate("easgd", ()), there.candidate("asgd", ())
    assert easgd is not None and asgd is not None
    config = resolve(easgd.table)
    assert config.algorithm.chosen is not None and config.training.learning_rate == 0.004
    assert resolve(asgd.table).algorithm.chosen is None and asgd.settings["training.learning_rate"] == 0.06
    assert "algorithm.momentum" not in there.axes("allreduce")


def test_neighbours_lie_near_what_is_good() -> None:
    there = Candidates({}, set(), 1)
    good = there.candidate("easgd", (0.5,) * len(there.axes("easgd")))
    assert good is not None
    assert list(there.near([])) == [] == list(there.near([there.first]))
    found = list(islice(there.near([replace(good, number=5)]), 20))
    assert {each.algorithm for each in found} == {"easgd"}
    assert max(abs(u - 0.5) for each in found for u in each.point) < 0.5


def test_a_configuration_that_does_not_load_is_refused() -> None:
    with pytest.raises(BadInput, match=r"training\.learning_rate"):
        Candidates({"training": {"learning_rate": -1}}, set(), 1)
