"""A run folder belongs to one run while that lives, and to the next one as soon as it does not."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from mpitrain import config
from mpitrain.api.folder import Reserved
from mpitrain.api.options import TrainOptions
from mpitrain.checkpoint import best_error, lease
from mpitrain.checkpoint.lease import NAME, Lease
from mpitrain.data.digits import prepare_digits
from mpitrain.data.normalising import NORMALISING
from mpitrain.data.reader import ShardFile
from mpitrain.data.shards import write_shard
from mpitrain.errors import BadInput
from mpitrain.mpi import Transport
from mpitrain.report.runs import read_run

SHORT = ("--set", "algorithm.name=msgd", "--set", "training.epochs=1", "--set", "run.progress=none")
STABILITY = ("stability", "--method", "admm", "--workers", "3", "--eta", "0.001", "--rho", "1")
LONG = ("--set", "training.epochs=100000", "--set", "run.evaluate_every=0", "--set", "run.checkpoint_samples=500")


def started(folder: Path, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
    """A training by one rank."""
    command, pipe = [sys.executable, "-m", "mpitrain", *arguments], subprocess.PIPE
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **variables}
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)


def ended(process: "subprocess.Popen[str]") -> tuple[int, list[str]]:
    """Its exit status, and the lines on standard error."""
    try:
        err = process.communicate(timeout=120)[1]
    finally:
        process.kill()
    return process.returncode, err.splitlines()


def events(run: Path) -> list[str]:
    """What metrics.jsonl tells of."""
    return [json.loads(line)["event"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_runs_of_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    """Several starts with the default name; nothing is left that says a folder is in use."""
    processes = [started(tmp_path, *SHORT) for _ in range(4)]
    assert [ended(process)[0] for process in processes] == [0] * 4
    runs = list((tmp_path / "runs").iterdir())
    assert len(runs) == 4 and not list((tmp_path / "runs").glob(f"*/{NAME}"))
    assert all(events(run).count("start") == events(run).count("end") == 1 for run in runs)


def test_the_folder_of_a_living_run_is_refused_and_that_of_a_killed_one_is_not(
    tmp_path: Path, launch: Callable[..., Any]
) -> None:
    """By --out, --resume and --continue, on one and on two ranks: one line with host and process, and status 2."""
    process = started(tmp_path, *SHORT, *LONG, "--out", "run")
    try:
        end = time.monotonic() + 60
        while not list((tmp_path / "run" / "checkpoints").glob("[0-9]*/manifest.json")):
            assert process.poll() is None and time.monotonic() < end, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGSTOP)  # it lives, and leaves the cores to the others
        for ranks, how in ((1, "--out"), (1, "--resume"), (1, "--continue"), (2, "--continue")):
            told = launch(ranks, how, "run")
            assert told.status == 2
            assert told.err == f"mpitrain: run: in use by process {process.pid} on {socket.gethostname()}\n"
        assert launch(1, "report", "run").status == 0 and launch(1, "evaluate", "run").status == 0
        assert events(tmp_path / "run").count("start") == 1
    finally:
        process.kill()
        process.communicate()
    assert launch(1, "--out", "run").err == "mpitrain: run: is there already; --resume continues a run\n"
    position = max(int(path.name) for path in (tmp_path / "run" / "checkpoints").glob("[0-9]*[0-9]"))
    assert launch(2, "--continue", "run", "--set", f"training.epochs={position // 1438 + 1}").status == 0
    assert not (tmp_path / "run" / NAME).exists()


def test_a_run_keeps_its_configuration_and_says_so(tmp_path: Path, launch: Callable[..., Any]) -> None:
    """Where the file that it began with is given again, changed; not of what --set asks for, or a run has chosen."""
    text = 'algorithm.name = "sgd"\ntraining.optimizer = "momentum"\ntraining.epochs = 1\nrun.deadline = 100\n'
    text += 'model.backend = "auto"\n'
    (tmp_path / "net.toml").write_text(text)
    words = ("net.toml", "--continue", "run", "--set", "run.progress=none")
    assert "warning" not in launch(1, *words).err + launch(1, *words, "--set", "training.epochs=2").err
    (tmp_path / "net.toml").write_text(text.replace("100", "200").replace('"momentum"', '"adamw"'))
    told = launch(1, *words, "--set", "training.epochs=3")
    kept = "algorithm.optimizer.name, run.deadline"
    line = f"mpitrain: warning: net.toml: the run keeps its own {kept}; --set changes them\n"
    assert told.status == 0 and line in told.err
    assert "deadline = 100" in (tmp_path / "run" / "config.toml").read_text()


def test_a_start_anew_forgets_the_best_model_of_the_first(tmp_path: Path, launch: Callable[..., Any]) -> None:
    """Which left no checkpoint: an evaluation of the best model is one of this training."""
    words = ("--continue", "run", *SHORT)
    assert launch(1, *words).status == 0
    best = tmp_path / "run" / "checkpoints" / "best"
    first = best_error(best.parent)
    for path in best.parent.glob("[0-9]*"):
        rmtree(path)
    assert launch(1, *words, "--set", "training.learning_rate=1e-7").status == 0
    assert first < 0.6 < best_error(best.parent) < 1


def test_best_is_a_model_of_the_data_that_a_resume_brings(tmp_path: Path, launch: Callable[..., Any]) -> None:
    """No error is comparable with that on another test part."""
    prepare_digits(tmp_path / "data")
    prepare_digits(tmp_path / "wrong")
    (test,) = (tmp_path / "wrong").glob("test*")
    with ShardFile(test) as file:
        arrays, attributes = {"images": file.read_inputs(), "targets": 9 - file.targets}, file.attributes
    write_shard(test, "images", arrays, {"classes": 10, **{name: attributes[name] for name in NORMALISING}})
    assert launch(1, *SHORT, "--set", "data.path=data", "--out", "run").status == 0
    checkpoints, command = tmp_path / "run" / "checkpoints", ("--resume", "run", "--set", "training.epochs=2")
    assert best_error(checkpoints) < 0.6
    assert launch(1, *command, "--set", "data.path=wrong").status == 0
    assert best_error(checkpoints) > 0.6


def test_an_earlier_checkpoint_is_evaluated_on_the_data_of_its_configuration(
    tmp_path: Path, launch: Callable[..., Any]
) -> None:
    for name in ("data", "other"):
        prepare_digits(tmp_path / name)
    assert launch(1, *SHORT, "--set", "data.path=data", "--out", "run").status == 0
    more = ("--set", "training.epochs=2", "--set", "data.path=other")
    assert launch(1, "--resume", "run", *more).status == 0
    first, last = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("[0-9]*"))
    rmtree(tmp_path / "data")
    assert launch(1, "evaluate", "run", "--checkpoint", last).status == 0
    lost = launch(1, "evaluate", "run", "--checkpoint", first)
    assert lost.status == 2 and "data: no such folder" in lost.err


def test_a_start_anew_leaves_a_run_folder_that_a_report_can_watch(tmp_path: Path, launch: Callable[..., Any]) -> None:
    """Until it writes its first record, for which it may have to compile."""
    words = ("--continue", "run", *SHORT)
    assert launch(1, *words).status == 0
    rmtree(tmp_path / "run" / "checkpoints")
    assert launch(1, *words, "--set", "run.fallback=/nowhere").status == 2
    assert read_run(tmp_path / "run", "run").name == "run"


def test_a_configuration_of_the_users_is_not_replaced(tmp_path: Path, launch: Callable[..., Any]) -> None:
    """As where --continue is given the folder of a project."""
    (tmp_path / "config.toml").write_text("[training]\nepochs = 1\n")
    ended = launch(1, "config.toml", "--continue", ".")
    assert ended.status == 2 and "mpitrain: config.toml: not written by a run" in ended.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.toml"]


@pytest.mark.parametrize(
    "words",
    [
        ("--continue", "run", "--set", "model.preset=zhang2013-cnn"),
        ("--out", "run", "--set", "run.record_order=true", "--set", "run.fallback=/nowhere"),
    ],
)
def test_bad_input_leaves_no_trace_of_a_lease(
    tmp_path: Path, launch: Callable[..., Any], words: tuple[str, ...]
) -> None:
    """A folder that was made for the run goes."""
    assert launch(1, *words).status == 2
    assert not (tmp_path / "run").exists()


# ---- runs on other machines


def elsewhere(folder: Path, **changes: str) -> Path:
    """The file of a run on another machine."""
    one = Lease(folder)
    text = (folder / NAME).read_text()
    one.release()
    folder.mkdir(exist_ok=True)
    fields = {**json.loads(text), "host": "node7", "process": 4321, "machine": "another", "token": "theirs", **changes}
    (folder / NAME).write_text(json.dumps(fields))
    return folder / NAME


@contextmanager
def heartbeat(path: Path, every: float = 0.5) -> Iterator[None]:
    """Renews the file; `every` in seconds."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(every):
            os.utime(path)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run."""
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def test_a_run_elsewhere_lives_while_its_heartbeat_does(folder: Path, launch: Callable[..., Any]) -> None:
    """The deadline of the other ranks does not count while the first one looks."""
    path = elsewhere(folder)
    with heartbeat(path, every=8.0):
        told = launch(2, "--continue", "run", "--set", "run.deadline=4")
    assert (told.status, told.err) == (2, "mpitrain: run: in use by process 4321 on node7\n")
    assert [path.name for path in folder.iterdir()] == [NAME]


def test_a_run_elsewhere_without_a_heartbeat_has_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once where the last one is long ago; else once it would have come."""
    os.utime(elsewhere(folder), (time.time() - 1000,) * 2)
    waits, sleep = list[float](), time.sleep
    monkeypatch.setattr(lease.time, "sleep", lambda seconds: waits.append(seconds) or sleep(seconds))
    Lease(folder).release()
    assert not waits
    monkeypatch.setattr(lease, "SILENT", 1.5)
    folder.mkdir()
    elsewhere(folder)
    Lease(folder).release()
    assert waits


@pytest.mark.parametrize("ahead", [-7200, 0, 7200])
def test_a_report_sees_a_heartbeat_whatever_its_own_clock_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """That of the machine with the files counts."""
    path, now = elsewhere(folder), time.time
    monkeypatch.setattr(lease.time, "time", lambda: now() + ahead)
    assert lease.in_use(folder)
    os.utime(path, (now() - 1000,) * 2)
    assert not lease.in_use(folder)
    assert [path.name for path in folder.iterdir()] == [NAME]


def test_a_requeued_job_does_not_wait_for_its_dead_node(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm counts the starts of a job; another step of the same start may live."""
    monkeypatch.setattr(lease, "SILENT", 1e6)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    elsewhere(folder)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    Lease(folder).release()
    folder.mkdir()
    path = elsewhere(folder)
    with heartbeat(path), pytest.raises(BadInput, match=r"in use by process 4321 on node7 \(job 77\)"):
        Lease(folder)


def test_a_file_that_is_not_whole_is_somebody_s(folder: Path) -> None:
    """Who is about to write it lives, or is silent for long."""
    (folder / NAME).touch()
    with heartbeat(folder / NAME), pytest.raises(BadInput, match="in use by a run"):
        Lease(folder)
    os.utime(folder / NAME, (0, 0))
    Lease(folder).release()


#: Processes that all find the file of a dead one at the same time.
RACE = """
import os, sys, time
from pathlib import Path
from mpitrain.errors import BadInput
from mpitrain.checkpoint.lease import NAME, Lease
for number in range(10):
    folder = Path(f"run-{number}")
    folder.mkdir()
    if not os.fork():
        Lease(folder)
        os._exit(0)
    os.wait()
    children = []
    for child in range(6):
        children.append(os.fork())
        if not children[-1]:
            while not (folder / "go").exists():
                time.sleep(0.0005)
            try:
                Lease(folder)
            except BadInput as error:
                assert "in use by process" in str(error), error
                os._exit(1)
            end = time.monotonic() + 30
            while not (folder / "over").exists() and time.monotonic() < end:
                time.sleep(0.01)
            os._exit(0)
    (folder / "go").touch()
    statuses = [os.waitstatus_to_exitcode(os.wait()[1]) for child in children[1:]]
    (folder / "over").touch()
    statuses.append(os.waitstatus_to_exitcode(os.wait()[1]))
    assert statuses == [1, 1, 1, 1, 1, 0], (number, statuses)
    assert sorted(path.name for path in folder.iterdir()) == ["go", NAME, "over"], list(folder.iterdir())
"""


def test_one_of_several_takes_over_from_a_dead_run(tmp_path: Path) -> None:
    """And the others are told its number."""
    done = subprocess.run(
        [sys.executable, "-c", RACE], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_run_that_lost_its_folder_ends(tmp_path: Path) -> None:
    """As one that was suspended for hours, and taken for dead."""
    program = "from mpitrain.checkpoint import lease; lease.HEARTBEAT = 0.1; from mpitrain.__main__ import main; main()"
    command = [sys.executable, "-c", program, *SHORT, *LONG, "--out", "run"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 60
        while not (tmp_path / "run" / "metrics.jsonl").exists():
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        path = tmp_path / "run" / NAME
        path.write_text(json.dumps({**json.loads(path.read_text()), "token": "another", "host": "node7"}))
        process.send_signal(signal.SIGCONT)
        err = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == 1 and err.startswith("mpitrain: run: lost to another run: in use by process"), err
    assert path.exists()


# ---- launchers


@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_the_launcher_of_another_mpi_is_refused(tmp_path: Path, name: str) -> None:
    """Each of its processes would train alone. What needs no MPI is not asked."""
    status, lines = ended(started(tmp_path, *SHORT, **{name: "3"}))
    assert status == 2 and len(lines) == 1 and "has started 3 processes, but MPI" in lines[0], lines
    assert not list(tmp_path.iterdir())
    assert ended(started(tmp_path, *STABILITY, **{name: "3"}))[0] == 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_size_of_a_job_is_not_that_of_a_launch(
    ranks: int, launch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An mpirun in a batch script, of fewer ranks than the job has; its daemons may be a step."""
    monkeypatch.setenv("SLURM_NTASKS", "8")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    told = launch(ranks, "info")
    assert told.status == 0 and f"rank {ranks - 1}" in told.out


def test_a_shell_in_a_step_is_not_a_launch(tmp_path: Path) -> None:
    """`srun -n 8 --pty bash`, and a batch script."""
    for variables in ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PTY_PORT": "1"}, {"SLURM_NTASKS": "8"}):
        assert ended(started(tmp_path, "info", **variables))[0] == 0


def test_a_folder_whose_storage_is_gone_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a training, whose last checkpoint is elsewhere: what the program has said is all, then."""

    def fails(path: Path) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    with Reserved(Transport()) as reserved:
        reserved.reserve_new(config.load(None, []), TrainOptions(out=tmp_path / "run"))
        monkeypatch.setattr(Path, "exists", fails)
