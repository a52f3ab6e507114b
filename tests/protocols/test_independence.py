"""What one minibatch does to the parameters does not depend on how many ranks share it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

#: Of the digits' 1438 samples, 290.
COMMON = (
    "training.epochs=0.2017",
    "training.dtype=float64",
    "run.evaluate_every=0",
    "model.l2=0.01",
    "model.width=0.25",
)
#: A minibatch that all numbers of ranks divide, and one that only 1 does; the last one has 2 and 10 samples.
MINIBATCHES = (36, 35)
ALLREDUCE = ("algorithm.name=allreduce", "algorithm.batch=global", "algorithm.bucket_mb=0.01")
HYBRID = ("algorithm.name=hybrid", "algorithm.batch=global")
TEAM = ("algorithm.name=sparse-delta", "algorithm.threshold=0.125")
#: Whatever promises it, by name.
SETTINGS = {
    "allreduce": ALLREDUCE,
    **{
        f"allreduce, {name}": (*ALLREDUCE, f"training.optimizer={name}")
        for name in ("sgd", "momentum", "nesterov", "adamw")
    },
    "allreduce, rate per sample": (*ALLREDUCE, "training.rate_per=sample", "training.learning_rate=0.001"),
    "allreduce, adamw, per sample": (*ALLREDUCE, "training.optimizer=adamw", "training.rate_per=sample"),
    **{f"hybrid, {scheme}": (*HYBRID, f"algorithm.scheme={scheme}") for scheme in "abc"},
    "a team": TEAM,
}


def parameters(folder: Path) -> np.ndarray:
    """Those of the last checkpoint."""
    state = sorted(folder.glob("checkpoints/[0-9]*/state.h5"))[-1]
    with h5py.File(state) as file:
        return np.asarray(file["theta"][:])


@pytest.mark.parametrize("minibatch", MINIBATCHES)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_number_of_ranks_changes_nothing_but_rounding(
    simulated: Callable[..., Any], tmp_path: Path, settings: tuple[str, ...], minibatch: int
) -> None:
    """On 1, 2 and 3 ranks, with even, uneven and last minibatches, and fewer samples than ranks."""
    found = {}
    for ranks in (1, 2, 3):
        keys = [*COMMON, f"training.minibatch={minibatch}", *settings]
        if settings is TEAM:
            keys.append(f"run.team={ranks}")
        ended = simulated(ranks, *(word for key in keys for word in ("--set", key)), "--out", str(ranks))
        assert ended.status == 0, ended.err
        found[ranks] = parameters(tmp_path / str(ranks))
    start = np.linalg.norm(found[1])
    apart = {ranks: float(np.linalg.norm(theta - found[1]) / start) for ranks, theta in found.items()}
    assert start > 0 and max(apart.values()) < 1e-9, apart
