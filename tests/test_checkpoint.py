"""Checkpoints: whole ones come back to the bit, torn ones are skipped and named."""

from pathlib import Path

import numpy as np
import pytest

from mpitrain import checkpoint
from mpitrain.assignments import Assignments, Work
from mpitrain.errors import BadInput
from mpitrain.flat import Layout, Parameter
from mpitrain.state import State

LAYOUT = Layout([Parameter("w", (3, 4), ("constant", 0.0)), Parameter("b", (5,), ("constant", 0.0))])


def filled(seed: int, trained: int) -> State:
    """A state with a velocity and ranges to hand out again."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((2, LAYOUT.size))
    state = State(vectors[0], Assignments(100, 1000, position=40), velocity=vectors[1], index=7, trained=trained)
    state.assignments.give_back(Work(0, 3, 5, 4))
    return state


def save(folder: Path, state: State, keep: int = 9) -> Path:
    """One checkpoint."""
    draft = checkpoint.Draft(folder, state.trained)
    draft.begin(1000)
    draft.write_state(state, LAYOUT, [Work(0, 20, 4, 4)])
    return draft.commit(keep)


def test_everything_comes_back(tmp_path: Path) -> None:
    """Vectors to the bit, counters, and the ranges in flight beside the returned ones."""
    saved = filled(1, 36)
    path = save(tmp_path, saved)
    found, skipped = checkpoint.newest(tmp_path)
    assert (found, skipped) == (path, [])
    state = State(np.zeros(17), Assignments(100, 1000), velocity=np.zeros(17))
    checkpoint.load_state(path, state, LAYOUT)
    assert np.array_equal(state.theta, saved.theta) and np.array_equal(state.velocity, saved.velocity)
    assert (state.index, state.trained, state.assignments.position) == (7, 36, 40)
    assert state.assignments.returned == [Work(0, 3, 5, 4), Work(0, 20, 4, 4)]


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    """keep = 2 of 4."""
    for trained in (10, 20, 30, 40):
        save(tmp_path, filled(1, trained), keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000000030", "000000000040"]


@pytest.mark.parametrize("damage", ["truncate", "flip", "no manifest", "empty manifest", "no state", "other format"])
def test_a_torn_checkpoint_is_skipped_and_named(tmp_path: Path, damage: str) -> None:
    """The one before it is taken."""
    whole, torn = save(tmp_path, filled(1, 10)), save(tmp_path, filled(2, 20))
    state, manifest = torn / "state.h5", torn / "manifest.json"
    content = bytearray(state.read_bytes())
    if damage == "truncate":
        state.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        content[len(content) // 2] ^= 1
        state.write_bytes(content)
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "empty manifest":
        manifest.write_text("")
    elif damage == "no state":
        state.unlink()
    else:
        manifest.write_text('{"format": 99, "files": {}}')
    found, skipped = checkpoint.newest(tmp_path)
    assert found == whole and len(skipped) == 1 and torn.name in skipped[0]


def test_a_checkpoint_cut_off_while_writing_is_not_seen(tmp_path: Path) -> None:
    """Before commit there is only a hidden folder."""
    whole = save(tmp_path, filled(1, 10))
    draft = checkpoint.Draft(tmp_path, 20)
    draft.begin(0)
    draft.write_state(filled(2, 20), LAYOUT, [])
    assert checkpoint.newest(tmp_path) == (whole, [])


def test_another_network_or_corpus_is_refused(tmp_path: Path) -> None:
    """The line names the file."""
    path = save(tmp_path, filled(1, 10))
    other = Layout([Parameter("w", (17,), ("constant", 0.0))])
    with pytest.raises(BadInput, match=r"state\.h5.*another network"):
        checkpoint.load_state(path, filled(3, 0), other)
    state = State(np.zeros(17), Assignments(99, 1000), velocity=np.zeros(17))
    with pytest.raises(BadInput, match=r"state\.h5.*100 samples"):
        checkpoint.load_state(path, state, LAYOUT)


def test_a_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    """Asked for more than there is; nothing is left behind under a real name."""
    draft = checkpoint.Draft(tmp_path, 10)
    with pytest.raises(BadInput, match="cannot be written"):
        draft.begin(1 << 60)
    assert checkpoint.newest(tmp_path) == (None, [])
