"""Checkpoints: whole ones come back to the bit, torn ones are skipped and named, full disks are survived."""

import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain import checkpoint
from mpitrain import config as configuration
from mpitrain.checkpoint.files import CarefulFile
from mpitrain.checkpoint.state import State
from mpitrain.checkpoint.writer import Saver
from mpitrain.errors import BadInput
from mpitrain.flat import Layout, Parameter
from mpitrain.mpi import Transport
from mpitrain.sampling.queue import Queue, Work
from mpitrain.training.context import fresh

LAYOUT = Layout([Parameter("w", (3, 4), ("constant", 0.0)), Parameter("b", (5,), ("constant", 0.0))])


def filled(seed: int, trained: int) -> State:
    """A state with a velocity and ranges to hand out again."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((2, LAYOUT.size))
    state = State(vectors[0], Queue(100, 1000, position=40), beside={"velocity": vectors[1]}, index=7, trained=trained)
    state.queue.give_back(Work(0, 3, 5, 4))
    return state


def piece_of(state: State, *outstanding: Work) -> checkpoint.FileContent:
    """The master's piece."""
    return checkpoint.FileContent(state.vectors(), state.numbers(), [*state.queue.returned, *outstanding])


def save(folder: Path, state: State, keep: int = 9) -> Path:
    """One checkpoint."""
    draft = checkpoint.Draft(folder, state.trained)
    draft.begin(1000)
    draft.write("state.h5", piece_of(state, Work(0, 20, 4, 4)), LAYOUT)
    return draft.commit(keep)


def test_what_a_model_keeps_comes_back_in_its_type(tmp_path: Path) -> None:
    """Also complex numbers, and an array of no element."""
    kept = {
        "a.turn": np.array([1 + 2j, -3j], np.complex64),
        "a.none": np.zeros((0, 3), np.float32),
        "marks": np.array([True, False]),
        "count": np.array(7),
    }
    draft = checkpoint.Draft(tmp_path, 1)
    draft.begin(1000)
    draft.write("state.h5", checkpoint.FileContent({}, {}, kept=kept), LAYOUT)
    found = checkpoint.load_kept(draft.commit())
    assert found.keys() == kept.keys()
    for name, array in kept.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array.reshape(-1))


def test_vectors_that_a_checkpoint_lacks_begin_where_it_was_made(tmp_path: Path) -> None:
    """An optimizer counts its steps from there; a resume of what it then saves keeps that place."""
    path = save(tmp_path / "first", filled(1, 36))
    moments = {"first_moment": np.zeros(17), "second_moment": np.zeros(17)}
    state = State(np.zeros(17), Queue(100, 1000), beside=moments)
    checkpoint.load_state(path, state, LAYOUT)
    assert (state.index, state.began) == (7, 7)
    state.index = 9
    again = State(np.zeros(17), Queue(100, 1000), beside={name: np.zeros(17) for name in moments})
    checkpoint.load_state(save(tmp_path / "second", state), again, LAYOUT)
    assert (again.index, again.began) == (9, 7)


def test_vectors_of_which_a_checkpoint_lacks_one_begin_together(tmp_path: Path) -> None:
    """A mean of squares, corrected for its start at 0, where `asgd` with gap-aware penalties gets a momentum."""
    saved = State(np.zeros(17), Queue(100, 1000), index=7, beside={"squares": np.ones(17)})
    state = State(np.zeros(17), Queue(100, 1000), beside={name: np.zeros(17) for name in ("velocity", "squares")})
    checkpoint.load_state(save(tmp_path, saved), state, LAYOUT)
    assert state.began == 7 and not state.beside["squares"].any()


def test_everything_comes_back(tmp_path: Path) -> None:
    """Vectors to the bit, counters, and the ranges in flight beside the returned ones."""
    saved = filled(1, 36)
    path = save(tmp_path, saved)
    found, skipped = checkpoint.newest(tmp_path)
    assert (found, skipped) == (path, [])
    state = State(np.zeros(17), Queue(100, 1000), beside={"velocity": np.zeros(17)})
    checkpoint.load_state(path, state, LAYOUT)
    assert np.array_equal(state.theta, saved.theta) and np.array_equal(
        state.beside["velocity"], saved.beside["velocity"]
    )
    assert (state.index, state.trained, state.queue.position) == (7, 36, 40)
    assert state.queue.returned == [Work(0, 3, 5, 4), Work(0, 20, 4, 4)]


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
    assert found == whole and len(skipped) == 1 and torn.name in skipped[0] and skipped[0].endswith("; skipped")


def test_a_checkpoint_cut_off_while_writing_is_not_seen(tmp_path: Path) -> None:
    """Before commit there is only a hidden folder."""
    whole = save(tmp_path, filled(1, 10))
    draft = checkpoint.Draft(tmp_path, 20)
    draft.begin(0)
    draft.write("state.h5", piece_of(filled(2, 20)), LAYOUT)
    assert checkpoint.newest(tmp_path) == (whole, [])


def test_another_network_or_corpus_is_refused(tmp_path: Path) -> None:
    """The line names the file."""
    path = save(tmp_path, filled(1, 10))
    other = Layout([Parameter("w", (17,), ("constant", 0.0))])
    with pytest.raises(BadInput, match=r"state\.h5.*another network.*\['w', \[3, 4\]\] stands where \['w', \[17\]\]"):
        checkpoint.load_state(path, filled(3, 0), other)
    state = State(np.zeros(17), Queue(99, 1000), beside={"velocity": np.zeros(17)})
    with pytest.raises(BadInput, match=r"state\.h5.*100 samples"):
        checkpoint.load_state(path, state, LAYOUT)


def test_a_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    """Asked for more than there is; nothing is left behind under a real name."""
    draft = checkpoint.Draft(tmp_path, 10)
    with pytest.raises(BadInput, match="cannot be written"):
        draft.begin(1 << 60)
    assert checkpoint.newest(tmp_path) == (None, [])


def test_why_no_checkpoint_is_whole(tmp_path: Path) -> None:
    """Where there are some, the newest one's fault is said: the disk may be at fault."""
    (save(tmp_path, filled(1, 30)) / "state.h5").unlink()
    with pytest.raises(BadInput, match=r"no whole checkpoint \(.*000000000030: torn \(.*state\.h5"):
        checkpoint.find(tmp_path)


@pytest.mark.parametrize("folders_sync", [True, False])
def test_a_file_system_that_does_not_say_what_it_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders_sync: bool
) -> None:
    """As that of some network shares: 0 bytes of 0. And one that cannot sync folders."""
    plain = os.fsync

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode) and not folders_sync:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        plain(handle)

    monkeypatch.setattr(shutil, "disk_usage", lambda path: namedtuple("usage", "total used free")(0, 0, 0))
    monkeypatch.setattr(os, "fsync", fsync)
    path = save(tmp_path, filled(1, 10))
    assert checkpoint.newest(tmp_path) == (path, [])


@pytest.mark.parametrize("call", ["exists", "glob"])
def test_a_piece_on_storage_that_fails_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Where a rank waits for those of others, and where the best model is looked for."""
    draft = checkpoint.Draft(tmp_path, 10)
    draft.begin(0)

    def fails(path: Path, *pattern: str) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(Path, call, fails)
    with pytest.raises(BadInput, match="000000000010: cannot be written: Stale file handle"):
        draft.await_files(["rank-00001.h5"], 5.0)
    checkpoint.clear(tmp_path)
    monkeypatch.setattr(Path, "is_dir", fails)
    assert checkpoint.best_error(tmp_path) == inf


def test_a_newer_torn_one_costs_no_whole_one(tmp_path: Path) -> None:
    """A run that resumed before it keeps what it writes, however few it keeps."""
    save(tmp_path, filled(1, 10), keep=1)
    (save(tmp_path, filled(1, 30), keep=2) / "state.h5").unlink()
    fifteen = save(tmp_path, filled(1, 15), keep=1)
    assert checkpoint.newest(tmp_path)[0] == fifteen
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000000015", "000000000030"]


def test_one_that_was_being_replaced_is_found(tmp_path: Path) -> None:
    """Killed between the two renames; and once the new one has the name, that one is taken."""
    path = save(tmp_path, filled(1, 10))
    aside = path.rename(tmp_path / f"{path.name}~")
    assert checkpoint.newest(tmp_path) == (aside, []) == checkpoint.find(tmp_path, path.name)
    again = save(tmp_path, filled(2, 10))
    assert checkpoint.newest(tmp_path) == (again, []) and not aside.exists()


def test_a_deletion_that_was_cut_short_hinders_no_other(tmp_path: Path) -> None:
    """Of the same name."""
    for name in (".deleting-kept~", "kept~"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.h5").write_bytes(b"")
    checkpoint.delete(tmp_path / "kept~")
    assert not list(tmp_path.iterdir())


def test_what_killed_runs_left_is_deleted(tmp_path: Path) -> None:
    """With the next checkpoint."""
    for name in (".writing-000000000010", ".deleting-000000000009"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.h5").touch()
    Saver(tmp_path, LAYOUT, 1, 60.0, Transport()).begin(20, 0)
    assert [path.name for path in tmp_path.iterdir()] == [".writing-000000000020"]


def write(saver: Saver, state: State) -> None:
    """One checkpoint, to its end."""
    saver.begin(state.trained, 0)
    saver.commit(state.trained, saver.copy_state(state, []), [])
    saver.settle()


def test_what_changes_while_it_is_written_does_not_matter(tmp_path: Path) -> None:
    """A copy is written."""
    saver, state = Saver(tmp_path, LAYOUT, 1, 60.0, Transport()), filled(1, 10)
    saved = state.theta.copy()
    piece = saver.copy_state(state, [])
    state.theta[:] = 0
    state.queue.returned.clear()
    saver.begin(10, piece.nbytes)
    saver.commit(10, piece, [])
    saver.settle()
    back = State(np.zeros(17), Queue(100, 1000), beside={"velocity": np.zeros(17)})
    checkpoint.load_state(tmp_path / "000000000010", back, LAYOUT)
    assert np.array_equal(back.theta, saved) and back.queue.returned == [Work(0, 3, 5, 4)]


def test_the_best_model_stays(tmp_path: Path) -> None:
    """The one with the smallest error, also of those before a resume, beside the newest; nan is no error."""
    saver, state = Saver(tmp_path, LAYOUT, 1, 60.0, Transport()), filled(1, 10)
    assert checkpoint.best_error(tmp_path) == inf
    for trained, error in ((10, 0.5), (20, float("nan")), (30, 0.2), (40, 0.3)):
        state.trained = trained
        saver.offer_best(error, np.full(17, trained, np.float64), trained)
        write(saver, state)
    saver = Saver(tmp_path, LAYOUT, 1, 60.0, Transport())  # as of a resumed run
    saver.offer_best(0.25, np.zeros(17), 50)
    state.trained = 50
    write(saver, state)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000000050", "best"]
    assert checkpoint.best_error(tmp_path) == 0.2
    options = configuration.load(None, ["algorithm.name=averaged"]).algorithm
    model, trained = checkpoint.load_model(
        tmp_path / "best", fresh(options, np.zeros(17), Queue(0, 0)), options.model_from, LAYOUT
    )
    assert trained == 30 and (model == 30).all()


def test_pieces_that_do_not_come_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the deadline, or at once when a rank could not write its own; nothing is left of the draft."""

    def full(self: CarefulFile) -> None:
        raise OSError(28, "rank 3's disk is full")

    saver, state = Saver(tmp_path, LAYOUT, 1, 0.05, Transport()), filled(1, 10)
    for refused in (False, True):
        saver.begin(10, 0)
        if refused:
            with monkeypatch.context() as patch, pytest.raises(BadInput, match="disk is full"):
                patch.setattr(CarefulFile, "finish", full)
                checkpoint.Draft(tmp_path, 10).write("rank-00003.h5", piece_of(state), LAYOUT)
        saver.commit(10, saver.copy_state(state, []), [3])
        with pytest.raises(BadInput, match="disk is full" if refused else r"waited .* for rank-00003\.h5"):
            saver.settle()
        assert not list(tmp_path.iterdir()) and saver.outcomes()[0][1]


def test_a_piece_that_was_begun_is_waited_for(tmp_path: Path) -> None:
    """However slow the disk of its rank is: that is no silence. Meanwhile there is another that has not been begun."""
    draft, came = checkpoint.Draft(tmp_path, 10), threading.Event()
    draft.begin(0)
    (draft.path / "rank-00003.h5.partial").touch()

    def end() -> None:
        time.sleep(0.5)
        (draft.path / "rank-00003.h5.partial").rename(draft.path / "rank-00003.h5")
        came.set()

    thread = threading.Thread(target=end)
    thread.start()
    draft.await_files(["rank-00003.h5"], 0.05)
    assert came.wait(10)
    thread.join()


WAITS = """
import sys
from pathlib import Path
from mpitrain.checkpoint import Draft
draft = Draft(Path("."), 10)
draft.begin(0)
Path("waits").touch()
draft.await_files(["rank-00003.h5"], 2.0)
"""


def test_suspended_time_is_not_taken_for_another_rank_s_silence(tmp_path: Path) -> None:
    """SIGSTOP for longer than the deadline; the piece comes after it."""
    process = subprocess.Popen([sys.executable, "-c", WAITS], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 60
        while not (tmp_path / "waits").exists():
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.5)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.3)
        (tmp_path / ".writing-000000000010" / "rank-00003.h5").touch()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_refusal_without_a_reason_is_one(tmp_path: Path) -> None:
    """A full disk takes the file's name, and not what it should say; no checkpoint is told of that is not there."""
    saver, state = Saver(tmp_path, LAYOUT, 1, 60.0, Transport()), filled(1, 10)
    saver.begin(10, 0)
    (tmp_path / ".writing-000000000010" / "rank-00003.h5.fault").touch()
    saver.commit(10, saver.copy_state(state, []), [3])
    with pytest.raises(BadInput, match=r"rank-00003\.h5 cannot be written"):
        saver.settle()
    assert [(path.name, bool(fault)) for path, fault in saver.outcomes()] == [("000000000010", True)]


def test_a_best_model_that_cannot_be_written_is_written_with_the_next_checkpoint(tmp_path: Path) -> None:
    """It costs no checkpoint, is told of, and stays unless there is a better one."""
    saver, state = Saver(tmp_path, LAYOUT, 9, 60.0, Transport()), filled(1, 10)
    (tmp_path / ".writing-best").touch()  # where its folder is to be
    saver.offer_best(0.2, np.full(17, 7.0), 7)
    write(saver, state)
    assert checkpoint.newest(tmp_path)[0] == tmp_path / "000000000010"
    told = [(path.name, bool(fault)) for path, fault in saver.outcomes()]
    assert told == [("best", True), ("000000000010", False), ("best", True)]
    (tmp_path / ".writing-best").unlink()
    saver.offer_best(0.3, np.zeros(17), 20)
    state.trained = 20
    write(saver, state)
    assert checkpoint.best_error(tmp_path) == 0.2 and all(not fault for _, fault in saver.outcomes())


FILLED = """
import resource, sys
from pathlib import Path
import numpy as np
from mpitrain.checkpoint import Draft, FileContent
from mpitrain.errors import BadInput
from mpitrain.flat import Layout, Parameter
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
draft = Draft(Path("."), 7)
draft.begin(0)
try:
    vectors, layout = {"theta": np.arange(300_000.0)}, Layout([Parameter("w", (300_000,), None)])
    draft.write("state.h5", FileContent(vectors, {}), layout)
except BadInput as error:
    print(error)
print(sorted(path.name for path in draft.path.iterdir()))
"""


@pytest.mark.parametrize("limit", [0, 1000, 1_000_000, 2_400_000])
def test_a_disk_that_fills_up_meanwhile_is_one_clear_line(tmp_path: Path, limit: int) -> None:
    """HDF5 by itself crashes when it cannot close its file."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", FILLED, str(limit)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and done.stderr == "", done
    assert "000000000007: cannot be written: File too large" in done.stdout and "'state.h5'" not in done.stdout


NO_SPACE = """
import shutil, sys, time
from collections import namedtuple
from pathlib import Path
from mpitrain.__main__ import main
from mpitrain.training.gradients import Learner
from mpitrain.monitoring.monitor import MasterMonitor
plain, asked = shutil.disk_usage, []
def disk_usage(path):
    if ".writing-0" not in str(path):
        return plain(path)
    asked.append(path)
    return namedtuple("usage", "free")(5_000) if len(asked) <= {times} else plain(path)
shutil.disk_usage = disk_usage
checkpoint = MasterMonitor.checkpoint
def begun(*arguments):
    Path("begun").touch()
    checkpoint(*arguments)
MasterMonitor.checkpoint = begun
gradient, computed = Learner.gradient, []
def waiting(*arguments):
    computed.append(arguments)
    while len(computed) > {minibatches} and not Path("begun").exists():
        time.sleep(0.01)
    return gradient(*arguments)
Learner.gradient = waiting
sys.exit(main())
"""


@pytest.mark.parametrize("name", ["asgd", "easgd"])
def test_a_training_goes_on_without_a_checkpoint(launch: Callable[..., Any], tmp_path: Path, name: str) -> None:
    """One that the disk has no room for is a warning; later ones are there. Workers may be so quick that only the last
    checkpoint is written: they wait for the first."""
    (tmp_path / "full.py").write_text(NO_SPACE.format(times=1, minibatches=100))
    settings = (f"algorithm.name={name}", "run.checkpoint_samples=1500", "training.epochs=6", "run.checkpoints_kept=1")
    ended = launch(3, *(word for each in settings for word in ("--set", each)), "--out", "run", program=("full.py",))
    assert ended.status == 0, ended.err
    assert ended.out.count("the disk has 0.0 MB left; the training goes on without this checkpoint") == 1
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    warnings = [each for each in records if each["event"] == "warning" and "this checkpoint" in each["text"]]
    assert len(warnings) == 1 and any(each["event"] == "checkpoint" for each in records)
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == [f"{6 * 1438:012d}", "best"]


def test_the_last_checkpoint_must_be_written(launch: Callable[..., Any], tmp_path: Path) -> None:
    """One clear line, status 2."""
    (tmp_path / "full.py").write_text(NO_SPACE.format(times=100, minibatches=1000))
    ended = launch(2, "--set", "training.epochs=1", "--out", "run", program=("full.py",))
    lines = [line for line in ended.err.splitlines() if line.startswith("mpitrain: ")]
    assert ended.status == 2 and len(lines) == 1 and lines[0].count("cannot be written: it needs 1.") == 2, ended.err
    assert "Traceback" not in ended.err
