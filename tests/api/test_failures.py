"""Where a failure is recorded: in the folder of the run that has failed, as long as no other has it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mpitrain.api.finish import failures_recorded
from mpitrain.checkpoint.lease import Lease, token_of
from mpitrain.errors import TrainingFailed


@pytest.mark.parametrize("again", [False, True])
def test_a_rank_that_was_cut_off_leaves_the_next_start_s_records_alone(tmp_path: Path, again: bool) -> None:
    """It fails late, when the others may have started again in the same folder: launch would take the record for a
    failure of theirs, and end them."""
    first, token = Lease(tmp_path), token_of(tmp_path)
    session: Any = SimpleNamespace(saver=SimpleNamespace(folder=tmp_path / "checkpoints"), token=token)
    (tmp_path / "metrics.jsonl").touch()
    first.release()
    second = Lease(tmp_path) if again else None
    with pytest.raises(TrainingFailed), failures_recorded(session):
        raise TrainingFailed("rank 1: waited")
    assert bool((tmp_path / "metrics.jsonl").read_text()) == (not again)
    if second is not None:
        second.release()
