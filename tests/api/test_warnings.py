"""Warnings before a run: each for the configuration it is about, and none for the defaults."""

from collections.abc import Collection, Sequence

import pytest

from mpitrain import config as configuration
from mpitrain.api import warnings


@pytest.mark.parametrize(
    ("settings", "counts", "measured", "warned"),
    [
        ([], [50, 50], ["test"], []),
        (["training.minibatch=100"], [50, 50], ["dev"], []),
        (["training.minibatch=101"], [50, 50], ["test"], ["training.minibatch = 101: an epoch has 100 samples"]),
        (["stages=[{at=20, minibatch=9}]"], [50, 50], ["test"], ["stages: at = 20.0: the training has ended by then"]),
        (['stages=[{at="150%", minibatch=9}]'], [50, 50], ["test"], ["stages: at = '150%': the training has ended"]),
        (["stages=[{at=30},{at=20},{at=2}]"], [50, 50], ["test"], ["stages: at = 30.0, 20.0: the training has ended"]),
        (['stages=[{at="99%", minibatch=9}]'], [50, 50], ["test"], []),
        ([], [0, 100, 0], ["test"], ["data.path: all samples are of one class"]),
        ([], [100], [], ["data.path: all samples are of one class", "data.path: there is no part dev or test"]),
    ],
)
def test_what_is_probably_not_intended(
    settings: list[str], counts: Sequence[int], measured: Collection[str], warned: list[str]
) -> None:
    schedule = configuration.load(None, settings).schedule(100)
    found = list(warnings.of_data(schedule, counts, measured))
    assert len(found) == len(warned) and all(map(str.startswith, found, warned)), found
