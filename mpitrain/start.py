"""The start of a process, before MPI, NumPy and the configuration: what its launcher and the command line say, which
cores and memory it may use, and the environment variables that NumPy's BLAS and Numba read when they load."""

import argparse
import os
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # where commands are added
DEADLINE, LONGEST = 300.0, 1e9  # seconds: the default of run.deadline, and its maximum
#: The number of a rank in its job: Open MPI, MPICH and Intel MPI, PMIx, Slurm. Slurm's comes last: within a batch
#: script it is 0, and mpirun passes that on to all ranks.
RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
#: The number of a rank on its node: Open MPI, MPICH and Intel MPI, Cray, Slurm.
LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID", "SLURM_LOCALID")

#: How many threads a rank has: Slurm's cores per task, else the user's limit for OpenBLAS, else that for any library.
THREADS = ("SLURM_CPUS_PER_TASK", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
#: Where Linux shows the control groups, by which Slurm, Docker and Kubernetes limit what processes may use, and the
#: file that names those of this process.
GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
LOOPS = 8e6  # bytes; twice what all compiled loops take


def option(
    parser: argparse._ActionsContainer, words: str, text: str, kind: Callable[[str], Any] | None = None, **more: Any
) -> None:
    """Add an argument "config FILE" or an option "--out DIR", whose value is of this `kind`, by default a text, or an
    option "--check" without a value, unless `more` says otherwise. `text` is its help."""
    name, _, metavar = words.partition(" ")
    if metavar or kind:
        more = {"metavar": metavar or None, "type": kind, **more}
    parser.add_argument(name, help=text, **(more or {"action": "store_true"}))


def rank_of(environment: Mapping[str, str], otherwise: int) -> int:
    """A process's number in its job; `otherwise` if no launcher says it."""
    return _number(environment, RANK, otherwise)


def local_rank_of(environment: Mapping[str, str], otherwise: int) -> int:
    """A process's number on its node; `otherwise` if no launcher says it."""
    return _number(environment, LOCAL_RANK, otherwise)


def ranks_of(environment: Mapping[str, str]) -> int:
    """How many processes the launcher says it has started as one job; 1 if no launcher says it.

    Variables of mpirun count before Slurm's, whose step, under mpirun, is that of mpirun's daemons. If one mpirun has
    started another, the one with fewer processes counts. A batch script has no step, and the step of a shell (srun
    --pty) has not started this program.
    """
    sizes = [environment.get(name, "") for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")]
    if not any(sizes) and "SLURM_PTY_PORT" not in environment:
        sizes = [environment.get("SLURM_STEP_NUM_TASKS", "")]
    return min((int(size) for size in sizes if size.isdecimal()), default=1)


def threads_of(environment: Mapping[str, str]) -> int:
    """How many threads a rank is to have; 0 if the environment does not say."""
    return _number(environment, THREADS, 0)


def _number(environment: Mapping[str, str], names: Sequence[str], otherwise: int) -> int:
    return next((int(environment[name]) for name in names if environment.get(name, "").isdigit()), otherwise)


def announce(version: str, overrides: Sequence[str], paths: Sequence[Path | None] = ()) -> None:
    """Let the first rank say that a training starts, before it loads MPI and NumPy and compiles, which may take long.

    Numba's cache shows whether loops are compiled. `overrides` or the configurations at `paths` may forbid the line.
    """
    if rank_of(os.environ, 0) or _is_quiet(overrides, filter(None, paths)):
        return
    ranks = ranks_of(os.environ)
    given = os.environ.get("NUMBA_CACHE_DIR")
    caches = [Path(given)] if given else [Path(__file__).parent, users_cache("numba")]
    warm = any(next(each.rglob("*.nbi"), None) for each in caches)
    cold = "" if warm else ", and compiles its loops, which takes up to a minute, once"
    with suppress(OSError):  # standard output is closed or full
        print(f"mpitrain {version} starts on {ranks} rank{'s' * (ranks > 1)}{cold}", flush=True)


def _is_quiet(overrides: Sequence[str], paths: Iterable[Path]) -> bool:
    told: list[object] = []
    for file in filter(os.path.isfile, (each / "config.toml" if os.path.isdir(each) else each for each in paths)):
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):  # reported when the file is loaded
            told.append(tomllib.loads(file.read_text(encoding="utf-8-sig"))["run"]["progress"])
    told += [value.strip(" '\"") for value in _given(overrides, "run.progress")]
    return told[-1:] == ["none"]


def _given(words: Sequence[str], key: str) -> list[str]:
    """The values that `key=value` and `--set=key=value` among these words of the command line give a key."""
    pairs = (word.removeprefix("--set=").partition("=") for word in words)
    return [value for name, _, value in pairs if name.strip() == key]


def first_deadline(words: Sequence[str]) -> float:
    """run.deadline by these words of the command line, or its default; used until the configuration is checked."""
    with suppress(IndexError, ValueError):
        if 0 < (deadline := float(_given(words, "run.deadline")[-1])) <= LONGEST:
            return deadline
    return DEADLINE


def stopped_ranks() -> dict[int, int]:
    """The ranks that this process's launcher has started on this node and that are stopped, as by SIGSTOP, each with
    its process id."""
    found: dict[int, int] = {}
    for process in os.listdir("/proc"):
        with suppress(OSError, ValueError):  # it has ended, or is not a process
            state, parent = Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[:2]
            if state in "tT" and int(parent) == os.getppid():
                words = Path("/proc", process, "environ").read_text(errors="replace").split("\0")
                rank = rank_of(dict(word.split("=", 1) for word in words if "=" in word), -1)
                found.update({rank: int(process)} if rank >= 0 else {})
    return dict(sorted(found.items()))


def prepare_environment() -> None:
    """Choose OpenBLAS's kernels where its own choice is slower. A variable that the user has set is kept."""
    if _is_zen_4():
        # Zen 4 executes an AVX-512 instruction in two halves: the AVX2 kernels are 3 to 10 % quicker there
        # (benchmarks/compute).
        os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")


def prepare_cache() -> None:
    """Give Numba a folder for its compiled loops where it can write neither to that of the user's variable, nor to the
    package, nor to the home folder, or where the first that it can write to is full: it compiles only what it can
    keep."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    caches = [*([Path(given)] if given else []), Path(__file__).parent / "models" / "__pycache__", users_cache("numba")]
    taken = next((there for there in map(_existing, caches) if os.access(there, os.W_OK | os.X_OK)), None)
    with suppress(OSError):  # some commands need no loops
        if taken is None or _is_full(taken):
            os.environ["NUMBA_CACHE_DIR"] = _private_folder()


def users_cache(name: str) -> Path:
    """The folder of this name in the user's cache, which outlasts a run; Numba writes in "numba" if it cannot write
    beside its modules."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), name)


def _existing(folder: Path) -> Path:
    """The folder, or that in which it can be created."""
    while not os.path.exists(folder):  # unlike Path.exists, also below a folder that may not be searched
        folder = folder.parent
    return folder


def _is_full(folder: Path | str) -> bool:
    """Whether compiled loops have no room on the folder's disk."""
    left = os.statvfs(folder)
    return left.f_blocks > 0 and left.f_bavail * left.f_frsize < LOOPS  # some file systems do not say


def _private_folder() -> str:
    """A temporary folder that belongs to this user alone; in memory where the disk cannot be written, as in a
    container, or is full."""
    try:
        parent = tempfile.gettempdir()
    except FileNotFoundError:
        parent = "/dev/shm"
    if _is_full(parent):
        parent = "/dev/shm"
    folder = Path(parent) / f"mpitrain-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        return tempfile.mkdtemp(prefix="mpitrain-", dir=parent)
    return str(folder)


def processor() -> dict[str, str]:
    """The properties of the first core by their names in /proc/cpuinfo; empty where that cannot be read."""
    try:
        facts = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
    except OSError:
        return {}
    lines = dict(line.split(":", 1) for line in facts.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in lines.items()}


def _is_zen_4() -> bool:
    """Whether this is AMD family 25 with AVX-512, which Zen 3 lacks."""
    known = processor()
    return known.get("vendor_id") == "AuthenticAMD" and known.get("cpu family") == "25" and "avx512f" in known["flags"]


def usable_cores() -> int:
    """How many cores this process may compute on at a time, at least 1."""
    return max(int(min(len(os.sched_getaffinity(0)), core_limit())), 1)


def core_limit() -> float:
    """How many cores' time the processes of this control group may take together, such as 1.5 after
    `docker run --cpus 1.5`; infinity where nothing limits it."""
    told = [text.split() for text in _told("", "cpu.max")]
    told += [[*both] for both in zip(_told("cpu", "cpu.cfs_quota_us"), _told("cpu", "cpu.cfs_period_us"), strict=False)]
    limits = (float(quota) / float(period) for quota, period in told if quota not in ("max", "-1"))
    return min(limits, default=inf)


def usable_memory() -> int:
    """Bytes of memory that the processes of this control group may take together: at most all that is installed."""
    told = (*_told("", "memory.max"), *_told("memory", "memory.limit_in_bytes"))
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([installed, *(int(limit) for limit in told if limit != "max")])


def _told(controller: str, name: str) -> Iterator[str]:
    """The contents of the files `name` of this process's control group and of the groups that contain it. Version 2 of
    control groups has all files in one tree; version 1 has a tree for each controller."""
    with suppress(OSError):
        for line in OWN.read_text(errors="surrogateescape").splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                own = GROUPS / controller / path.lstrip("/")
                for folder in (own, *own.parents):
                    with suppress(OSError):
                        yield (folder / name).read_text().strip()
