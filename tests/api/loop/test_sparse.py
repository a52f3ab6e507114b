"""`sparse-delta` in a loop of one's own: what the steps change is sent or held back; all ranks have the same bits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")

from mpitrain.api.loop.past import part_of  # noqa: E402
from tests.api.loop.sparse import EPOCHS, MINIBATCH, RATE, SAMPLES  # noqa: E402

LOADED = ("torch._dynamo", "mpitrain.api.loop")
PROGRAM = str(Path(__file__).with_name("sparse.py"))
DENSITY, BEYOND = (str(Path(__file__).with_name(f"{name}.py")) for name in ("density", "beyond"))
SIZE = SAMPLES.shape[1]


def ends(launch: Callable[..., Any], folder: Path, ranks: int, *trainings: dict[str, Any]) -> list[np.ndarray]:
    """The parameters at the end of each training, which all ranks have."""
    ended = launch(ranks, *map(json.dumps, trainings), program=(PROGRAM,))
    assert ended.status == 0, ended.err
    found = []
    for number in range(len(trainings)):
        found.append(np.load(folder / f"{number}/end-0.npy"))
        others = [np.load(folder / f"{number}/end-{rank}.npy") for rank in range(1, ranks)]
        assert all(each.tobytes() == found[-1].tobytes() for each in others)
    return found


@pytest.mark.parametrize(
    ("ranks", "trainings"),
    [
        (1, [{}]),
        (2, [{"bits": 32, "codec": "golomb-rice"}]),
        (
            3,
            [
                {},
                {"synchronous": True, "codec": "auto"},
                {"bits": 4, "threshold": 0.25, "target_density": 0, "window": 1},
            ],
        ),
    ],
)
def test_no_increment_is_lost(
    launch: Callable[..., Any], tmp_path: Path, ranks: int, trainings: list[dict[str, Any]]
) -> None:
    """x₀, what all ranks' steps changed, and what all residuals hold back: exactly x."""
    for number, end in enumerate(ends(launch, tmp_path, ranks, *trainings)):
        total, folder = np.full(SIZE, 0.5), tmp_path / str(number)
        for rank in range(ranks):
            total += np.load(folder / f"moved-{rank}.npy")
            with h5py.File(folder / "kept" / part_of(rank)) as file:
                held = file["residual"][:]
            assert np.count_nonzero(held) > SIZE / 2
            total += held  # of what is subtracted
        assert np.count_nonzero(end != 0.5) > SIZE / 4
        np.testing.assert_array_equal(total, end)


def test_three_ranks_by_hand(launch: Callable[..., Any], tmp_path: Path) -> None:
    """In step: of each rank's residual one threshold, where it is more, moves the common x."""
    threshold = 0.25
    (end,) = ends(launch, tmp_path, 3, {"synchronous": True, "threshold": threshold, "target_density": 0})
    x, residuals = np.full(SIZE, 0.5), np.zeros((3, SIZE))
    for batches in np.tile(SAMPLES.numpy().reshape(-1, 3, MINIBATCH, SIZE), (EPOCHS, 1, 1, 1)):
        residuals -= RATE * (x - batches.mean(1))
        sent = np.where(np.abs(residuals) > threshold, threshold * np.sign(residuals), 0.0)
        residuals -= sent
        x = x + sent.sum(0)
    np.testing.assert_array_equal(end, x)


def test_messages_have_as_many_entries_as_asked_for(launch: Callable[..., Any]) -> None:
    """AdamW moves all parameters by about as much, so that many reach the threshold together."""
    ended = launch(2, "0.002", program=(DENSITY,))
    assert ended.status == 0, ended.err
    share = next(float(line.split()[1]) for line in ended.out.splitlines() if line.startswith("share"))
    assert 0.0018 < share < 0.0022


def test_parameters_that_leave_their_range_end_the_job_in_one_line(launch: Callable[..., Any]) -> None:
    ended = launch(2, program=(BEYOND,))
    assert ended.status != 0 and "Traceback" not in ended.err
    assert "mpitrain: weight 0 would leave ±32, the range of integer weights" in ended.err.splitlines()
