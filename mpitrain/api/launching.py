"""Start ranks by the site's launcher, from a process that is not one of them and on nodes that answer, and pass stop
signals on to them."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from math import inf
from pathlib import Path
from types import FrameType
from typing import IO

from mpitrain.errors import BadInput, TrainingFailed, naming
from mpitrain.signals import STOPPED, handling

GRACE = 240.0  # seconds that a stopped run has to write a checkpoint; jobs/compare.sbatch allows 300
ENDING = 60.0  # seconds that a launcher has to end after its ranks: a node on which they ran may not answer
ANSWER = 20.0  # seconds within which a program must have answered, or a node started a process
KEPT = 1 << 16  # the last bytes of a launcher's output that are kept
#: Names of lost ranks: silent ones as other ranks name them; dead ones as the launchers of Open MPI and Slurm do.
LOST = re.compile(
    rb"waited \S+ s for ranks? ([\d, ]+) \(|process rank (\d+) with PID|: error: \S+: task (\d+): (?!Exited)"
)
#: The signal that ended a rank, as the launchers of Open MPI and MPICH say it.
DIED = re.compile(r"exited on\s+signal (\d+ \(.+?\))|TERMINATED WITH THE EXIT STRING: (.+)")
Until = Callable[[], bool]
Nodes = dict[str, int]  # how many ranks each node has room for, by the name of the node
PROGRAM = [sys.executable, "-m", "mpitrain"]
PLACEMENT = "PRTE_MCA_rmaps_default_mapping_policy"  # how Open MPI 5 places ranks unless its options say it
#: Before a launcher that is told its nodes. In a Slurm job, srun and mpirun start job steps. If a step has lost a node,
#: what is left of it blocks new steps, except those that may overlap with others.
OVERLAPPING = ["env", "SLURM_OVERLAP=1"]


def launcher(given: str) -> str:
    """The command that starts `{ranks}` ranks. Raises BadInput if there is no such program."""
    if given:
        if "{ranks}" not in given and "--het-group" not in given:
            raise BadInput(f'--launch: {given!r} has no {{ranks}}, as in "mpirun -n {{ranks}}"')
        with naming(f"--launch {given}", ValueError):
            program = shlex.split(given)[0]
        if shutil.which(program) is None:
            raise BadInput(f"--launch: {program}: no such program")
        return given
    beside = str(Path(sys.executable).parent)
    for name, path in (("mpirun", beside), ("mpirun", None), ("mpiexec", None), ("srun", None)):
        found = shutil.which(name, path=path)
        if found:
            return f"{shlex.quote(found)} -n {{ranks}}"
    raise BadInput("--launch: found neither mpirun, mpiexec nor srun; say how to start {ranks} ranks")


def on_ranks(launch: str, ranks: int, words: list[str]) -> list[str]:
    """The command line that starts a program on this many ranks."""
    started = shlex.split(launch.replace("{ranks}", str(ranks)))
    if "--oversubscribe" not in started and ranks > (os.cpu_count() or 1) and is_open_mpi(started[0]):
        # By its own default, Open MPI 5 would then start the ranks of several hosts all on the first one.
        policy = f"{PLACEMENT}={os.environ.get(PLACEMENT, 'slot')}"
        started = ["env", policy, *started, "--oversubscribe"]
    return [*started, *words]


def start(words: list[str], output: IO[str] | None = None, errors: int | None = None) -> "subprocess.Popen[bytes]":
    """Start a command line. Its output goes to the file `output`, else to ours; `errors`: as Popen's `stderr`.

    Slurm sends SIGTERM to every process of a job, and an mpirun that receives it kills the ranks, which need seconds to
    write a checkpoint. So the process does not receive it: SIGTERM is blocked, and it belongs to a new session.
    """
    errors = errors if output is None else subprocess.STDOUT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        return subprocess.Popen(words, stdout=output, stderr=errors, stdin=subprocess.DEVNULL, start_new_session=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Heard(threading.Thread):
    """Passes on what a launcher says on standard error, whose end may name the ranks that were lost."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        super().__init__(daemon=True)
        self._source, self._said = process.stderr, b""
        self.start()

    def run(self) -> None:
        while part := os.read(self._source.fileno(), KEPT) if self._source else b"":
            with suppress(OSError):  # if nobody reads our output, the launcher must still be able to write its own
                sys.stderr.buffer.write(part)
                sys.stderr.flush()
            self._said = (self._said + part)[-KEPT:]

    def lost(self, heterogeneous: bool = False) -> list[int]:
        """The ranks that other ranks or the launcher, which has ended, named as lost; MPICH's launcher names none. The
        tasks that Slurm numbers are ranks, but those of a heterogeneous job are numbered in each of its components, and
        once a task has exited, Slurm kills others."""
        self.join(1.0)  # not for ever: processes that the launcher has started may keep the pipe open
        said = b" ".join(self._said.split())
        for found in LOST.finditer(said):
            silent, process, task = found.groups()
            if not task or not (heterogeneous or b": Exited with exit code" in said[: found.start()]):
                return [int(rank) for rank in (silent or process or task).split(b",")]
        return []


class Relay:
    """Passes stop signals of users and batch systems on to the current run; `asked`: whether a signal has come.

    Signals are passed on as SIGUSR1, which mpirun and srun forward to all ranks, so that these write a checkpoint.
    """

    def __init__(self) -> None:
        self.asked = self._late = False
        self._process: subprocess.Popen[bytes] | None = None

    def listening(self) -> AbstractContextManager[None]:
        """A context that handles the signals, if this is Python's main thread."""
        return handling(self._handle)

    def wait(self, process: "subprocess.Popen[bytes]", deadline: float = inf, over: Until = bool) -> int | None:
        """The exit status, or None if the process had to be ended after `deadline` seconds.

        After a signal, a process with a deadline has GRACE seconds; once its work is `over()`, any process has ENDING.
        """
        self._process, self._late = process, False
        if self.asked:  # a signal came while the process was being started
            self._pass_on()
        status = waited(process, deadline, lambda: self.asked or over())
        self._late = status is None and not self.asked and not over()
        if self._late:
            self._pass_on()
        if status is None:
            status = waited(process, GRACE if deadline < inf else inf, over)
        if status is None and over():
            status = waited(process, ENDING)
        if status is None:
            status = kill(process)
        return None if self._late and status else status

    def pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until a signal comes."""
        end = time.monotonic() + seconds
        while not self.asked and time.monotonic() < end:
            time.sleep(min(seconds, 0.2))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        known = self._late and not self.asked  # a second signal would end it before it has written the checkpoint
        self.asked = True
        if not known:
            self._pass_on()

    def _pass_on(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGUSR1)


def waited(process: "subprocess.Popen[bytes]", seconds: float, enough: Until = bool) -> int | None:
    """Wait for a process; return its exit status, or None if it still runs after this many seconds, or when `enough()`
    becomes true."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not enough():
        with suppress(subprocess.TimeoutExpired):
            return process.wait(min(left, 0.5))
    return process.poll()


def kill(process: "subprocess.Popen[bytes]") -> int:
    """End a process that `start` has started, with those that it has started itself; return its exit status."""
    os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def is_open_mpi(program: str) -> bool:
    """Whether this program is Open MPI's launcher, which before version 5 may call itself OpenRTE."""
    return any("Open MPI" in text or "OpenRTE" in text for text in told_by([program, "--version"]))


def told_by(words: list[str]) -> tuple[str, str]:
    """A command's standard output and standard error; empty if it cannot be run, or takes longer than ANSWER."""
    with suppress(OSError, subprocess.TimeoutExpired):
        ended = subprocess.run(words, capture_output=True, text=True, timeout=ANSWER, check=False)
        return ended.stdout, ended.stderr
    return "", ""


def logged(log: Path) -> bytes:
    """What a program has written to its log. Raises TrainingFailed if the folder was moved or deleted meanwhile."""
    try:
        return log.read_bytes()
    except FileNotFoundError:
        raise TrainingFailed(f"{log}: was moved or deleted meanwhile; --out with its new place goes on") from None


def last_words(output: bytes, status: int) -> str:
    """Why a program ended with an exit status: a stop request, or too few ranks that are left; the last line of its
    output that begins with "mpitrain: ", but for warnings; the signal that ended it or a rank; or else its last line
    with a letter, or the status."""
    text = output.decode(errors="replace")
    lines = [line for line in text.splitlines() if any(map(str.isalpha, line))]
    own = [line.removeprefix("mpitrain: ") for line in lines if line.startswith("mpitrain: ")]
    own = [line for line in own if not line.startswith("warning: ")]
    if status == STOPPED:
        return next((line for line in own if line.startswith("run.least_ranks is ")), "stopped by a signal")
    died = [f"ended by signal {-status}"] if status < 0 else []
    died += [f"a rank was ended by a signal: {number or name}" for number, name in DIED.findall(text)]
    return (own or died or lines or [f"exit status {status}"])[-1][:300]


def nodes_of(hosts: str) -> Nodes:
    """The nodes of `--hosts a:4,b:4`, or else those of the Slurm job that this process is in, if it has several; empty
    if none are known. Raises BadInput naming the option."""
    if hosts:
        pairs = (each.rpartition(":") if ":" in each else (each, "", "1") for each in hosts.split(","))
        with suppress(ValueError):
            found = {name.strip(): int(slots) for name, _, slots in pairs}
            if all(found) and min(found.values()) > 0 and len(found) == len(hosts.split(",")):
                return found
        raise BadInput(f"--hosts {hosts}: expected a:4,b:4, each host once")
    listed, tasks = (os.environ.get(name, "") for name in ("SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE"))
    if not listed or "SLURM_HET_SIZE" in os.environ:  # components of heterogeneous jobs differ in their nodes
        return {}
    # "4(x2),3" means 4 tasks on each of two nodes, and 3 on the next
    counts = [int(each) for each, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks) for _ in range(int(times or 1))]
    names = told_by(["scontrol", "show", "hostnames", listed])[0].split()
    return dict(zip(names, counts, strict=True)) if len(names) == len(counts) > 1 else {}


def answering(launch: str, nodes: Nodes) -> Nodes:
    """The nodes on which the launcher starts a process within ANSWER seconds, by a second try if need be. Returns all
    nodes if that cannot be told: if none answers, fewer than two are known, or the launcher's options are not known."""
    if len(nodes) < 2 or on_nodes(launch, nodes) == launch:
        return nodes
    first = _asked(launch, nodes)
    found = first | _asked(launch, nodes.keys() - first)  # a launcher may fail once with a node that is there
    return {name: slots for name, slots in nodes.items() if name in found} or nodes


def _asked(launch: str, nodes: Iterable[str]) -> set[str]:
    """Those of the nodes that answer. All are asked at once."""
    asked = {}
    for name in nodes:
        words = shlex.split(on_nodes(launch, {name: 1}).replace("{ranks}", "1"))
        asked[name] = start([*OVERLAPPING, *words, "true"], errors=subprocess.DEVNULL)
    end, found = time.monotonic() + ANSWER, set()
    for name, process in asked.items():
        status = waited(process, max(end - time.monotonic(), 0.1))
        if status is None:
            kill(process)
        elif status == 0:
            found.add(name)
    return found


def on_nodes(launch: str, nodes: Mapping[str, int]) -> str:
    """The launcher with the options that start ranks on these nodes alone; unchanged if its options are not known."""
    program, *rest = shlex.split(launch)
    hosts = ",".join(f"{name}:{slots}" for name, slots in nodes.items())
    if Path(program).name == "srun":
        words = [f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}"]
    elif Path(program).name in ("mpirun", "mpiexec"):
        words = ["--host" if is_open_mpi(program) else "-hosts", hosts]
    else:
        return launch
    return shlex.join([program, *words, *rest])
