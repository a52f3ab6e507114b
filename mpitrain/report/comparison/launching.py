"""Start a run with the site's launcher and a deadline, and pass on signals that stop it."""

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
from typing import TextIO

from mpitrain.errors import BadInput
from mpitrain.report.comparison.matrix import Element

GRACE = 240.0  # seconds that a stopped run has to write a checkpoint; jobs/compare.sbatch allows 300


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


def command(element: Element, launch: str) -> list[str]:
    """The whole command line of an element's run."""
    started = shlex.split(launch.replace("{ranks}", str(element.ranks)))
    if "--oversubscribe" not in started and element.ranks > (os.cpu_count() or 1) and _open_mpi(started[0]):
        started.append("--oversubscribe")
    return [*started, sys.executable, "-m", "mpitrain", "train", *element.words, "--continue", str(element.folder)]


def run(element: Element, words: list[str], deadline: float, relay: "Relay") -> str:
    """Run or resume an element by a command line. Returns "" or the reason why it is not finished. Its output goes to
    its log."""
    element.log.parent.mkdir(parents=True, exist_ok=True)
    with element.log.open("a") as log:
        began = log.tell()
        process = _start(words, log)
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
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
        before = [signal.signal(number, self._handle) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
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


def _start(words: list[str], log: TextIO) -> "subprocess.Popen[bytes]":
    """Start in a session of its own with SIGTERM blocked: Slurm sends SIGTERM to every process of a job, and an mpirun
    that receives it kills the ranks, which need seconds to write a checkpoint."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        return subprocess.Popen(
            words, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def last_words(output: bytes) -> str:
    """The program's message on why it ended, or else the last line of its output."""
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    own = [line.removeprefix("mpitrain: ") for line in lines if line.startswith("mpitrain: ")]
    return (own or lines or [""])[-1][:300]


def _open_mpi(program: str) -> bool:
    try:
        told = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "Open MPI" in told.stdout or "Open MPI" in told.stderr
