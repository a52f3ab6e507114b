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


def test_threads_that_are_not_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a BLAS that threadpoolctl does not know: three ranks on two cores trained a hundredth of the samples."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert not list(warnings.of_threads(2))
    monkeypatch.setattr(warnings, "threadpool_info", lambda: [{"user_api": "openmp"}])
    (warned,) = warnings.of_threads(2)
    assert warned.startswith("run.threads: has no effect") and "OMP_NUM_THREADS=2" in warned
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert not list(warnings.of_threads(2))
