"""Start the runs of a comparison, by the site's launcher or simulated, with a deadline, and pass on signals that stop
them.

A cluster to simulate is read by `mpitrain simulate` alone, in a process of its own: reading it here would start MPI in
the process that starts the others.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from mpitrain.api.clusters import find
from mpitrain.errors import BadInput, last_words, naming
from mpitrain.report.comparison.matrix import Element
from mpitrain.signals import NUMBERS

GRACE = 240.0  # seconds that a stopped run has to write a checkpoint; jobs/compare.sbatch allows 300
KEPT = "cluster.toml"  # in the comparison's folder: that of all its runs
DEADLINE = 120.0  # seconds to read a configuration and a cluster
PROGRAM = [sys.executable, "-m", "mpitrain"]


def launcher(given: str) -> str:
    """The command that starts `{ranks}` ranks. Raises BadInput if there is no such program."""
    if given:
        if "{ranks}" not in given:
            raise BadInput(f'--launch: {given!r} has no {{ranks}}, as in "mpirun -n {{ranks}}"')
        if shutil.which(shlex.split(given)[0]) is None:
            raise BadInput(f"--launch: {shlex.split(given)[0]}: no such program")
        return given
    beside = str(Path(sys.executable).parent)
    for name, path in (("mpirun", beside), ("mpirun", None), ("mpiexec", None), ("srun", None)):
        found = shutil.which(name, path=path)
        if found:
            return f"{shlex.quote(found)} -n {{ranks}}"
    raise BadInput("--launch: found neither mpirun, mpiexec nor srun; say how to start {ranks} ranks")


def launched(element: Element, launch: str) -> list[str]:
    """The whole command line of an element's run."""
    started = shlex.split(launch.replace("{ranks}", str(element.ranks)))
    if "--oversubscribe" not in started and element.ranks > (os.cpu_count() or 1) and _open_mpi(started[0]):
        started.append("--oversubscribe")
    return [*started, *PROGRAM, "train", *element.words, "--continue", str(element.folder)]


def simulated(element: Element, cluster: str, last: tuple[str, ...] = ()) -> list[str]:
    """The whole command line of an element's simulated run; `last` in place of the words that start or continue it."""
    where = ["--cluster", cluster, "--ranks", str(element.ranks)]
    return [*PROGRAM, "simulate", *element.words, *where, *(last or ("--continue", str(element.folder)))]


def require_room(elements: list[Element], cluster: str) -> None:
    """Raise BadInput unless the cluster can be read and has room for every run."""
    words = simulated(max(elements, key=lambda element: element.ranks), cluster, ("--print-config",))
    try:
        told = subprocess.run(words, capture_output=True, timeout=DEADLINE, check=False)
    except subprocess.TimeoutExpired:
        raise BadInput(f"--simulate {cluster}: not read within {DEADLINE:.0f} s") from None
    if told.returncode:
        raise BadInput(f"--simulate: {last_words(told.stderr) or f'exit status {told.returncode}'}")


def require_same(out: Path, cluster: str) -> None:
    """Raise BadInput if there are runs in the comparison's folder that are of another cluster, or real."""
    kept = out / KEPT
    if kept.exists() and not cluster:
        raise BadInput(f"{out}: its runs are simulated: give --simulate {kept}, or take another --out")
    if kept.exists() and kept.read_text(encoding="utf-8") != cluster_text(cluster):
        raise BadInput(f"{out}: its runs are of another cluster, {kept}; take another --out")
    if cluster and not kept.exists() and any((out / "runs").glob("*/metrics.jsonl")):
        raise BadInput(f"{out}: its runs are not simulated; take another --out")


def cluster_text(cluster: str) -> str:
    """The content of the cluster's file. Raises BadInput naming it."""
    with naming(cluster), naming(f"{cluster}: not TOML", ValueError):
        return find(cluster, "--simulate").read_text(encoding="utf-8")


def run(element: Element, words: list[str], deadline: float, relay: "Relay") -> str:
    """Run or resume an element by a command line. Returns "" or the reason why it is not finished. Its output goes to
    its log."""
    element.log.parent.mkdir(parents=True, exist_ok=True)
    with element.log.open("a") as log:
        began = log.tell()
        # Slurm sends SIGTERM to every process of a job, and an mpirun that receives it kills the ranks, which need
        # seconds to write a checkpoint: it starts with SIGTERM blocked, in a session of its own.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            process = subprocess.Popen(
                words, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        status = relay.wait(process, deadline)
    if status is None:
        return f"no end within {deadline:.0f} s"
    if status:
        return last_words(element.log.read_bytes()[began:]) or f"exit status {status}"
    left = element.read()
    ranks = left.results.get("ranks") if left else None
    if ranks != element.ranks:
        return f"ran on {ranks} ranks, not {element.ranks}: is the launcher that of another MPI than mpi4py's?"
    return "" if element.state() == "finished" else "left no summary"


class Relay:
    """Passes stop signals of users and batch systems on to the current run; `asked` says whether there was one.

    They are passed on as SIGUSR1, which mpirun and srun forward to all ranks, so that these write a checkpoint.
    """

    def __init__(self) -> None:
        self.asked = self._late = False
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """A context that handles the signals, if this is Python's main thread; other threads cannot."""
        numbers = NUMBERS if threading.current_thread() is threading.main_thread() else ()
        before = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def wait(self, process: "subprocess.Popen[bytes]", deadline: float) -> int | None:
        """The exit status, or None if the process had to be ended after `deadline` seconds."""
        self._process, self._late, end = process, False, time.monotonic() + deadline
        if self.asked:  # a signal came while the process was being started
            self._pass_on()
        while not self.asked and (left := end - time.monotonic()) > 0:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(min(left, 0.5))
        self._late = not self.asked and process.poll() is None
        if self._late:
            self._pass_on()
        try:
            status = process.wait(GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
        return None if self._late and status else status

    def _handle(self, number: int, frame: FrameType | None) -> None:
        known = self._late and not self.asked  # a second signal would end it before it has written the checkpoint
        self.asked = True
        if not known:
            self._pass_on()

    def _pass_on(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGUSR1)


def _open_mpi(program: str) -> bool:
    try:
        told = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "Open MPI" in told.stdout or "Open MPI" in told.stderr
