"""The rate's falls, as tables of window means."""

import pytest

from mpitrain.sampling.common_rate import CommonRate

NAN = float("nan")


def falls(rate: CommonRate, losses: list[float]) -> list[float]:
    seen = []
    for loss in losses:
        rate.observe(loss)
        seen.append(rate.divisor)
    return seen


@pytest.mark.parametrize(
    "losses, expected",
    [
        ([4, 3, 2, 1, 0.5], [1, 1, 1, 1, 1]),
        ([4, 4, 4, 4, 4, 4, 4], [1, 1, 5, 5, 10, 10, 10]),
        ([4, 4, 3, 3, 3, 2, 2], [1, 1, 1, 1, 5, 5, 5]),
        ([4, 3.99, 3.98, 3.97], [1, 1, 5, 5]),
        ([4, NAN, NAN], [1, 1, 5]),
    ],
)
def test_falls(losses: list[float], expected: list[float]) -> None:
    assert falls(CommonRate(window=1, patience=2, tolerance=0.02), losses) == expected


def test_a_window_counts_by_its_mean() -> None:
    """Means 2, 1, 1, 1: noise inside a window neither saves nor condemns it."""
    assert falls(CommonRate(window=2, patience=2), [1, 3, 2, 0, 0, 2, 1, 1]) == [1, 1, 1, 1, 1, 1, 1, 5]
