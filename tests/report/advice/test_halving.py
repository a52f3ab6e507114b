"""Successive halving, by hand."""

from math import inf

import pytest

from mpitrain.report.advice.halving import Rung, at_time, ranked, rungs


def curve(*points: tuple[float, float]) -> list[dict[str, object]]:
    """Evaluations by (seconds, merit)."""
    return [{"seconds": seconds, "samples": 100 * seconds, "merit": merit} for seconds, merit in points]


#: SLOW becomes the best, QUICK is the first to come to 0.3, STUCK comes nowhere.
STUCK, QUICK, SLOW = range(3)
CURVES = {
    STUCK: curve((1, 0.9), (2, 0.8), (4, 0.8)),
    QUICK: curve((1, 0.4), (2, 0.2), (4, 0.15)),
    SLOW: curve((1, 0.8), (2, 0.4), (4, 0.05)),
}


def test_rungs() -> None:
    """A third of them goes on, for three times as long; the last ones train for the whole time."""
    assert rungs(27, 3) == [Rung(27, 1 / 9), Rung(9, 1 / 3), Rung(3, 1.0)]
    assert rungs(10, 3) == [Rung(10, 1 / 3), Rung(3, 1.0)]
    assert rungs(2, 3) == [Rung(2, 1.0)]


def test_the_merit_at_a_time() -> None:
    assert at_time(CURVES[QUICK], 3) == pytest.approx(0.175)
    assert at_time(CURVES[QUICK], 4) == at_time(CURVES[QUICK], 100) == 0.15
    assert at_time(CURVES[QUICK], 0.5) == at_time([], 1) == inf


def test_the_order_by_the_time_to_what_half_of_them_reach() -> None:
    """Least are 0.05, 0.15 and 0.8, so that the level is 0.15: SLOW comes to it at 2 + 2 · 0.25/0.35 s, QUICK at 4;
    of a target of 0.3 at 2 + 2 · 0.1/0.35 and at 1.5 s."""
    assert ranked(CURVES, 0.01, 4) == [SLOW, QUICK, STUCK]
    assert ranked(CURVES, 0.3, 4) == [QUICK, SLOW, STUCK]


def test_the_order_by_the_merit_at_a_time() -> None:
    assert ranked(CURVES, None, 4) == [SLOW, QUICK, STUCK]
    assert ranked(CURVES, None, 2) == [QUICK, SLOW, STUCK]
