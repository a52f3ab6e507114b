"""What a process knows before MPI starts; ending the job: what was printed before arrives; control groups, as Linux
shows them in /sys/fs/cgroup, of both versions."""

import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from math import inf
from pathlib import Path

import pytest

from mpitrain import start
from mpitrain.mpi.process import PRINTING
from mpitrain.start import DEADLINE, announce, first_deadline

GB = 1 << 30
UNLIMITED = "9223372036854771712"


def test_an_abort_waits_until_the_last_line_is_read() -> None:
    """A launcher's helper that is late on a busy node drops what it has not read when the job ends."""
    program = "from mpitrain.mpi.process import PROCESS; PROCESS.start(); print('last words'); PROCESS.abort(3)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None and select.select([process.stdout], [], [], 60)[0]
        time.sleep(PRINTING + 2)
        assert process.poll() is None
        assert process.communicate(timeout=60)[0].startswith(b"last words\n") and process.returncode == 3
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("rank", "words", "compiled", "said"),
    [
        ("0", [], True, "mpitrain 9 starts on 8 ranks\n"),
        ("0", [], False, "mpitrain 9 starts on 8 ranks, and compiles its loops, which takes up to a minute, once\n"),
        ("1", [], True, ""),
        ("0", ["run.progress=none"], True, ""),
    ],
)
def test_a_start_is_said_at_once(
    rank: str,
    words: list[str],
    compiled: bool,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before MPI, by the first rank, with what its launcher tells; loops are compiled if the cache holds any."""
    for name, value in (("PMI_RANK", rank), ("PMI_SIZE", "8"), ("NUMBA_CACHE_DIR", str(tmp_path))):
        monkeypatch.setenv(name, value)
    if compiled:
        (tmp_path / "models").mkdir()
        (tmp_path / "models" / "loop.nbi").touch()
    announce("9", words)
    assert capsys.readouterr().out == said


def test_how_many_ranks_slurm_has_started() -> None:
    """By `srun --mpi=pmix`, under which no MPI sets a variable; not the daemons of an mpirun."""
    step = {"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "4"}
    assert start.ranks_of(step) == 4
    assert start.ranks_of({**step, "OMPI_COMM_WORLD_SIZE": "6"}) == 6
    assert start.ranks_of({**step, "SLURM_PTY_PORT": "5"}) == start.ranks_of({"SLURM_NTASKS": "4"}) == 1


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ('[run]\nprogress = "none"\n', [], False),
        ('[run]\nprogress = "none"\n', ["run.progress=plain"], True),
        ('[run]\nprogress = "none"\n', ["training.epochs=1"], False),
        ('[run]\nprogress = "plain"\n', ["run.progress = 'none'"], False),
        ("[run]\nthreads = 1\n", [], True),
        ("run = 3\n", [], True),
        ("[run\n", [], True),
    ],
)
@pytest.mark.parametrize("folder", [False, True])
def test_a_start_is_not_said_where_a_file_wants_nothing_printed(
    text: str, words: list[str], said: bool, folder: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A configuration or that of a resumed run; what is wrong with a file is reported when it is read in earnest."""
    (tmp_path / "config.toml").write_text(text)
    announce("9", words, [None, tmp_path if folder else tmp_path / "config.toml", tmp_path / "missing.toml"])
    assert bool(capsys.readouterr().out) == said


@pytest.mark.parametrize(
    ("words", "deadline"),
    [
        ([], DEADLINE),
        (["train", "--set", "run.deadline=6", "--set", "run.out=x"], 6.0),
        (["--set=run.deadline=6", "--set", "run.deadline = 7.5"], 7.5),
        (["--set", "run.deadline=soon"], DEADLINE),
        (["--set", "run.deadline=-1"], DEADLINE),
        (["--set", "run.deadline=inf"], DEADLINE),
        (["--set", "run.deadline=1e12"], DEADLINE),  # no thread can wait so long
    ],
)
def test_the_deadline_before_the_configuration_is_read(words: list[str], deadline: float) -> None:
    """That of the command line, where it can be one."""
    assert first_deadline(words) == deadline


#: Starts ranks 0 to 2 as a launcher does, of which rank 2 is stopped; another program of its is stopped, too.
LAUNCHER = """
import os, signal, subprocess, sys, time
from pathlib import Path
sleep, rank = [sys.executable, "-c", "import time; time.sleep(600)"], "OMPI_COMM_WORLD_RANK"
stopped = [subprocess.Popen(sleep, env={**os.environ, rank: "2"}), subprocess.Popen(sleep)]
runs = subprocess.Popen(sleep, env={**os.environ, rank: "1"})
try:
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
        while Path("/proc", str(process.pid), "stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)
    program = "from mpitrain.start import stopped_ranks; print([*stopped_ranks()])"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, rank: "0"}, timeout=60, check=True)
finally:
    for process in (*stopped, runs):
        process.kill()
"""


def test_ranks_that_are_stopped_are_seen() -> None:
    """On this node, among those that the same launcher has started."""
    environment = {name: value for name, value in os.environ.items() if "RANK" not in name}
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "[2]\n"


@pytest.mark.parametrize(
    ("groups", "files", "cores", "memory"),
    [
        ("0::/", {}, inf, None),
        ("0::/", {"cpu.max": "150000 100000", "memory.max": str(GB)}, 1.5, GB),  # in a container, whose root it is
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "400000 100000", "a/b/memory.max": "max"}, 4, None),
        ("0::/a/b", {"a/b/memory.max": str(2 * GB), "a/memory.max": str(GB)}, inf, GB),  # of a Slurm job's step
        (
            "4:memory:/a\n1:cpu,cpuacct:/a\n0::/",
            {"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000", "memory/a/x": ""},
            2,
            None,
        ),
        (
            "4:memory:/a\n1:cpu,cpuacct:/a\n0::/",
            {
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/a/memory.limit_in_bytes": UNLIMITED,
                "memory/memory.limit_in_bytes": str(GB),
            },
            inf,
            GB,
        ),
    ],
)
def test_control_groups_limit_cores_and_memory(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    groups: str,
    files: dict[str, str],
    cores: float,
    memory: int | None,
) -> None:
    """The group that limits most counts."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    (tmp_path / "own").write_text(groups + "\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(start, "GROUPS", tmp_path)
    monkeypatch.setattr(start, "OWN", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(3)))
    assert start.core_limit() == cores
    assert start.usable_cores() == int(min(cores, 3))
    assert start.usable_memory() == (installed if memory is None else memory)


def test_a_share_of_less_than_a_core_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "core_limit", lambda: 0.5)
    assert start.usable_cores() == 1


def test_where_there_are_no_control_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(start, "OWN", tmp_path / "missing")
    assert start.core_limit() == inf and start.usable_memory() > 0


#: A program of the user's, where the package, the home folder and, with an argument, all others are read-only.
READ_ONLY = """
import os, sys, tempfile
os.access = lambda *_: False
def gettempdir():
    raise FileNotFoundError
if sys.argv[1:]:
    tempfile.gettempdir = gettempdir
import mpitrain
print(os.environ["NUMBA_CACHE_DIR"])
"""


@pytest.mark.parametrize("given", [None, "/proc/1/cache", f"/{'x' * 300}/cache"])  # the last cannot be looked at
@pytest.mark.parametrize("words", [[], ["no temporary folder"]])
def test_a_program_has_a_folder_for_compiled_loops(given: str | None, words: list[str], tmp_path: Path) -> None:
    """As the command line has: where Numba cannot write, it fails at the first loop that it is to keep."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"TMPDIR": str(tmp_path)} | ({"NUMBA_CACHE_DIR": given} if given else {})
    program = [sys.executable, "-c", READ_ONLY, *words]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{'/dev/shm' if words else tmp_path}/mpitrain-{os.getuid()}\n"
    with suppress(OSError):  # somebody's loops are in it
        Path(done.stdout.strip()).rmdir()


#: The same, where the disks of these folders are full.
FULL = """
import os, sys
from types import SimpleNamespace
os.statvfs = lambda folder: SimpleNamespace(f_blocks=9, f_frsize=4096, f_bavail=9 if str(folder) in sys.argv else 1e6)
import mpitrain
print(os.environ["NUMBA_CACHE_DIR"])
"""


@pytest.mark.parametrize(("full", "place"), [("", "given"), ("given", "tmp"), ("given tmp", "/dev/shm")])
def test_compiled_loops_go_where_there_is_room(full: str, place: str, tmp_path: Path) -> None:
    """On a full disk Numba fails as soon as it has compiled one."""
    folders = {name: tmp_path / name for name in ("given", "tmp")}
    for folder in folders.values():
        folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(folders["tmp"]), "NUMBA_CACHE_DIR": str(folders["given"])}
    program = [sys.executable, "-c", FULL, *(str(folders[name]) for name in full.split())]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60, check=True)
    own = f"{folders.get(place, place)}/mpitrain-{os.getuid()}" if full else folders[place]
    assert done.stdout == f"{own}\n"
    if full:
        with suppress(OSError):  # somebody's loops are in it
            Path(done.stdout.strip()).rmdir()
