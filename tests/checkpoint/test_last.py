"""What a run leaves at its end, whatever has become of its disk and its folder: one whole checkpoint, and a line."""

import errno
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpitrain import checkpoint
from mpitrain.checkpoint import last
from mpitrain.checkpoint.files import CarefulFile
from mpitrain.checkpoint.writer import Saver
from mpitrain.monitoring.evaluation import Evaluation
from mpitrain.monitoring.monitor import MasterMonitor

MPIRUN = Path(sys.executable).with_name("mpirun")
SMALL = 'model.layers=[{kind="fully-connected", units=8}, {kind="relu"}, {kind="fully-connected"}]'
EPOCH = 1438
ALGORITHMS = ("easgd", "asgd", "sparse-delta", "block-momentum", "allreduce")


def keys(*settings: str) -> list[str]:
    return [word for each in (SMALL, "run.progress=plain", *settings) for word in ("--set", each)]


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


def newest(run: Path) -> int:
    """How many samples the newest checkpoint has seen; none is torn."""
    found, torn = checkpoint.newest(run / "checkpoints")
    assert found is not None and not torn, torn
    return int(found.name)


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths with one of these in them are on a full disk."""
    full, plain = list[str](), shutil.disk_usage

    def disk_usage(path: Any) -> Any:
        if any(each in str(path) for each in full):
            return namedtuple("usage", "free")(5_000)
        return plain(path)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    return full


# ---- a full disk


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_last_checkpoint_goes_where_there_is_room(
    simulated: Callable[..., Any],
    no_room: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    given: bool,
) -> None:
    """To run.fallback, or to the system's temporary folder; the line says where, and from there it goes on."""
    (tmp_path / "spare").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spare"))
    no_room.append(".writing-0")
    spare = tmp_path / "spare" / "mpitrain-full"
    plain = last.fallback

    def fallback(parent: str, run: Path) -> Path:
        no_room.clear()  # of the disk that this leaves
        return plain(parent, run)

    monkeypatch.setattr(last, "fallback", fallback)
    told = (f"algorithm.name={name}", "training.epochs=1", *([f"run.fallback={tmp_path / 'spare'}"] if given else []))
    ended = simulated(3, *keys(*told), "--out", "full")
    assert ended.status == 2 and ended.err.count("\n") == 1, ended
    assert f"mpitrain: full/checkpoints/{EPOCH:012d}: cannot be written: it needs 1.1 MB" in ended.err, ended.err
    assert ended.err.endswith(
        f"; the last checkpoint is in {spare}; to resume: mpitrain simulate --cluster … --resume {spare}\n"
    )
    assert newest(spare) == EPOCH and not list((tmp_path / "full" / "checkpoints").glob("0*"))
    assert summary(spare)["exit_reason"] == "finished" and not (tmp_path / "full" / "summary.json").exists()
    events = [json.loads(line)["event"] for line in (spare / "metrics.jsonl").read_text().splitlines()]
    assert events[0] == "start" and events[-1] == "end" and "evaluate" in events
    assert simulated(3, "--resume", str(spare), "--set", "training.epochs=2").status == 0
    assert summary(spare)["samples"] == 2 * EPOCH


def test_the_best_model_goes_along(
    simulated: Callable[..., Any], no_room: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """That of the first evaluation, which is the best here."""
    (tmp_path / "spare").mkdir()
    no_room.append(".writing-0")
    fallback, offer = last.fallback, Saver.offer_best

    def found(parent: str, run: Path) -> Path:
        no_room.clear()
        return fallback(parent, run)

    def offered(self: Saver, error: float, model: Any, trained: int, *of: str) -> None:
        offer(self, trained / EPOCH, model, trained, *of)

    monkeypatch.setattr(last, "fallback", found)
    monkeypatch.setattr(Saver, "offer_best", offered)
    told = ("algorithm.name=allreduce", "training.epochs=2", "run.fallback=spare")
    assert simulated(3, *keys(*told), "--out", "run").status == 2
    assert checkpoint.best_error(tmp_path / "spare" / "mpitrain-run" / "checkpoints") == 1.0


def test_a_best_model_that_cannot_go_along_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is left of the copy."""
    best, folder, copy = tmp_path / "old" / "best", tmp_path / "new", shutil.copyfile
    best.mkdir(parents=True)
    folder.mkdir()
    for name in ("manifest.json", "state.h5"):
        (best / name).write_text(name)

    def full(source: Any, to: Any, **more: Any) -> Any:
        if "state" in str(to):
            raise OSError(28, "No space left on device")
        return copy(source, to, **more)

    monkeypatch.setattr(shutil, "copyfile", full)
    last._take_along(best, folder)
    assert capsys.readouterr().err == f"mpitrain: warning: {best}: cannot be copied to {folder}\n"
    assert not list(folder.iterdir())


def test_no_room_anywhere_is_one_line(simulated: Callable[..., Any], no_room: list[str], tmp_path: Path) -> None:
    """Which names both places; nothing is left in the second one."""
    (tmp_path / "spare").mkdir()
    no_room.append(".writing-0")
    ended = simulated(3, *keys("algorithm.name=easgd", "training.epochs=1", "run.fallback=spare"), "--out", "run")
    assert ended.status == 2 and ended.err.count("\n") == 1, ended
    assert ended.err.count("cannot be written: it needs") == 2 and "run/checkpoints/" in ended.err
    assert "; spare/mpitrain-run/checkpoints/" in ended.err and not list((tmp_path / "spare").iterdir())


def test_a_piece_that_cannot_be_written_moves_the_last_checkpoint(
    simulated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of another rank than the first, whose disk fills up meanwhile; nothing of it is left."""
    (tmp_path / "spare").mkdir()
    plain = CarefulFile.finish

    def finish(file: CarefulFile) -> None:
        if "rank-00002.h5" in str(file.name) and "spare" not in str(file.name):
            file.fault = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(file)

    monkeypatch.setattr(CarefulFile, "finish", finish)
    ended = simulated(3, *keys("algorithm.name=easgd", "training.epochs=1", "run.fallback=spare"), "--out", "run")
    assert ended.status == 2 and "No space left on device; the last checkpoint is in" in ended.err, ended
    assert newest(tmp_path / "spare" / "mpitrain-run") == EPOCH
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.parametrize("name", ["allreduce", "easgd"])
def test_storage_that_fails_altogether_moves_the_last_checkpoint(
    simulated: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
) -> None:
    """As that of a server that does not answer any more, where nothing below the folder can even be looked at."""
    (tmp_path / "spare").mkdir()
    broken, plain_write = list[Path](), last.write

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(path: Path, *arguments: Any, **names: Any) -> Any:
            if any(path.absolute().is_relative_to(each) for each in broken):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return call(path, *arguments, **names)

        return called

    for each in ("exists", "is_dir", "glob", "iterdir", "mkdir"):
        monkeypatch.setattr(Path, each, failing(getattr(Path, each)))

    def write(*arguments: Any) -> Any:
        broken.append(tmp_path / "run" / "checkpoints")
        return plain_write(*arguments)

    monkeypatch.setattr(last, "write", write)
    told = (f"algorithm.name={name}", "training.epochs=2", "run.fallback=spare", "run.checkpoint_samples=1000")
    ended = simulated(3, *keys(*told), "--out", "run")
    assert ended.status == 2 and ended.err.count("\n") == 1 + ended.err.count("warning: "), ended
    assert "cannot be written: Input/output error; the last checkpoint is in" in ended.err, ended.err
    broken.clear()
    assert newest(tmp_path / "spare" / "mpitrain-run") == 2 * EPOCH


@pytest.mark.parametrize("name", ["easgd", "sparse-delta"])
def test_ranks_that_do_not_see_the_other_folder_are_named(
    simulated: Callable[..., Any], no_room: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """As on another node: the checkpoint lacks their own vectors, but no sample."""
    (tmp_path / "spare").mkdir()
    plain = last._write_own
    no_room.append(".writing-0")

    def write_own(saver: Any, rank: int, *rest: Any) -> str:
        return last.UNSEEN if rank == 2 else plain(saver, rank, *rest)

    def fallback(parent: str, run: Path) -> Path:
        no_room.clear()
        return plain_fallback(parent, run)

    plain_fallback = last.fallback
    monkeypatch.setattr(last, "_write_own", write_own)
    monkeypatch.setattr(last, "fallback", fallback)
    told = (f"algorithm.name={name}", "training.epochs=1.4", "run.fallback=spare", "run.evaluate_every=0")
    ended = simulated(3, *keys(*told), "--out", "run")
    assert ended.status == 2 and ", without the own vectors of rank 2; to resume" in ended.err, ended
    run = tmp_path / "spare" / "mpitrain-run"
    assert simulated(3, "--resume", str(run), "--set", "training.epochs=2").status == 0
    assert summary(run)["samples"] == 2 * EPOCH


def test_a_fallback_that_is_no_folder_is_refused_at_the_start(simulated: Callable[..., Any], tmp_path: Path) -> None:
    ended = simulated(2, *keys("algorithm.name=easgd", "run.fallback=nowhere"), "--out", "run")
    assert (ended.status, ended.err) == (2, "mpitrain: run.fallback = 'nowhere': no such folder\n")
    assert not (tmp_path / "run").exists()


def test_a_disk_without_room_is_warned_of_at_the_start(
    simulated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For four of 610 weights in the state and in each of two workers, the best model, and what files need."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: namedtuple("usage", "free")(1_078_000))
    said = "run: the disk has 1.1 MB left, 4 more checkpoints and the best model need 1.1 MB (run.checkpoints_kept = 3)"
    told = keys("algorithm.name=easgd", "training.epochs=0.1", "algorithm.tau=1")
    assert f"warning: {said}\n" in simulated(3, *told, "--out", "run").out
    monkeypatch.setattr(shutil, "disk_usage", lambda path: namedtuple("usage", "free")(1_081_000))
    assert "the disk has" not in simulated(3, *told, "--out", "again").out


# ---- a folder that is moved or deleted


def displaced(tmp_path: Path, how: str) -> Path | None:
    """The run folder moves or goes; another one may take its name."""
    if how == "deleted":
        shutil.rmtree(tmp_path / "run")
        return None
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    if how == "replaced":
        (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    return tmp_path / "elsewhere"


@pytest.mark.parametrize("how", ["moved", "replaced", "deleted"])
@pytest.mark.parametrize("name", [*ALGORITHMS, "hybrid", "msgd"])
def test_a_run_whose_folder_goes_ends_with_a_whole_checkpoint(
    simulated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, how: str
) -> None:
    """Where the folder is now, or in the system's temporary one; not in another folder that has taken its name."""
    (tmp_path / "spare").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spare"))
    plain, begun = MasterMonitor.checkpoint, list[str]()

    def save(self: MasterMonitor, *arguments: Any, **names: Any) -> None:
        plain(self, *arguments, **names)
        begun.append(how)
        if len(begun) == 2:
            displaced(tmp_path, how)

    monkeypatch.setattr(MasterMonitor, "checkpoint", save)
    more = ("model.width=0.25",) if name == "hybrid" else ()
    told = (f"algorithm.name={name}", "training.epochs=20", "run.checkpoint_samples=1000", *more)
    settings = keys(*told)[2 * bool(more) :]
    ended = simulated(2, *settings, "--out", "run")
    run = tmp_path / "spare" / "mpitrain-run" if how == "deleted" else tmp_path / "elsewhere"
    assert ended.status == 1 and ended.err.count("\n") == 1, ended
    where = f"was deleted meanwhile; the last checkpoint is in {run}" if how == "deleted" else f"was moved to {run}"
    assert f"mpitrain: run: {where}" in ended.err and f"--cluster … --resume {run}\n" in ended.err, ended.err
    assert 1000 < newest(run) < 20 * EPOCH
    assert summary(run)["exit_reason"] == ("deleted" if how == "deleted" else "moved")
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["event"] == "end"
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("run*/**/*"))
    assert left == (["run/checkpoints"] if how == "replaced" else []) and not (run / "in-use.json").exists()
    monkeypatch.setattr(MasterMonitor, "checkpoint", plain)
    epochs = newest(run) // EPOCH + 2  # samples of the next epoch may have been handed out
    assert simulated(2, "--resume", str(run), "--set", f"training.epochs={epochs}").status == 0
    assert summary(run)["samples"] == epochs * EPOCH


@pytest.mark.skipif(not MPIRUN.exists(), reason="this environment has no mpirun of its own")
def test_processes_whose_folder_moves_find_it(tmp_path: Path) -> None:
    """Four of them; and what the line says can be typed."""
    command = [str(MPIRUN), "-n", "4", sys.executable, "-m", "mpitrain", *keys("training.epochs=1e6"), "--out", "run"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=pipe, text=True, start_new_session=True
    )
    try:
        end = time.monotonic() + 90
        while not list(tmp_path.glob("run/checkpoints/0*")):
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.05)
        (tmp_path / "run").rename(tmp_path / "else where")
        err = process.communicate(timeout=90)[1]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 1 and not (tmp_path / "run").exists(), err
    seen = newest(tmp_path / "else where")
    words = shlex.split(err.splitlines()[0].partition("to resume: ")[2])
    assert words == ["mpirun", "-n", "4", "python", "-m", "mpitrain", "--resume", str(tmp_path / "else where")]
    again = [str(MPIRUN), *words[1:3], sys.executable, *words[4:], "--set", f"training.epochs={seen // EPOCH + 2}"]
    assert subprocess.run(again, cwd=tmp_path, stdout=subprocess.DEVNULL, timeout=120, check=False).returncode == 0


# ---- the order of the end


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_failing_evaluation_does_not_cost_the_training(
    simulated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """As of a module that fails in evaluation mode alone: the checkpoint is written before."""

    def fail(self: Evaluation) -> None:
        raise ZeroDivisionError("in evaluation mode")

    monkeypatch.setattr(Evaluation, "step", fail)
    told = keys(f"algorithm.name={name}", "training.epochs=2", "run.evaluate_every=0")
    with pytest.raises(ZeroDivisionError):
        simulated(3, *told, "--out", "run")
    assert newest(tmp_path / "run") == 2 * EPOCH


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (("algorithm.name=block-momentum", "algorithm.preset=slowmo"), ("algorithm.name=allreduce",)),
        (("algorithm.name=mdownpour", "training.learning_rate=0.01"), ("algorithm.name=easgd",)),
        (
            ("algorithm.staleness=dana", "algorithm.momentum=0.9"),
            ("algorithm.staleness=decay", "training.learning_rate=0.003"),
        ),
        (("algorithm.name=averaged", "training.learning_rate=0.3"), ("algorithm.name=sgd",)),
    ],
)
def test_another_algorithm_goes_on_from_the_model(
    simulated: Callable[..., Any], tmp_path: Path, first: tuple[str, ...], then: tuple[str, ...]
) -> None:
    """Not from a θ that was ahead of it, or of which it was the mean, nor with a velocity in other units."""

    def error() -> float:
        return float(json.loads((tmp_path / "run" / "summary.json").read_text())["test_error"])

    def run(keys: tuple[str, ...], *words: str) -> None:
        assert simulated(3, *(part for key in keys for part in ("--set", key)), *words).status == 0

    run((*first, "training.epochs=2"), "--out", "run")
    before = error()
    run(then, "--resume", "run")
    assert error() == before
    run((*then, "training.epochs=3"), "--resume", "run")
    assert error() < 1.5 * before + 0.02
