"""Start ranks by the site's launcher from a process that is none of them, and pass on signals that stop them."""

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
from math import inf
from pathlib import Path
from types import FrameType
from typing import IO

from mpitrain.errors import BadInput, naming
from mpitrain.signals import NUMBERS
from mpitrain.start import ranks_of

GRACE = 240.0  # seconds that a stopped run has to write a checkpoint; jobs/compare.sbatch allows 300
PROGRAM = [sys.executable, "-m", "mpitrain"]


def require_no_ranks(command: str) -> None:
    """Raise BadInput if mpirun has started several of this process."""
    if ranks_of(os.environ) > 1:
        raise BadInput(f"{command} starts the ranks itself: start it without mpirun")


def launcher(given: str) -> str:
    """The command that starts `{ranks}` ranks. Raises BadInput if there is no such program."""
    if given:
        if "{ranks}" not in given:
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


def training(launch: str, ranks: int, words: list[str]) -> list[str]:
    """The whole command line of a training, with these words after `train`."""
    started = shlex.split(launch.replace("{ranks}", str(ranks)))
    if "--oversubscribe" not in started and ranks > (os.cpu_count() or 1) and _open_mpi(started[0]):
        started.append("--oversubscribe")
    return [*started, *PROGRAM, "train", *words]


def start(words: list[str], output: IO[str] | None = None) -> "subprocess.Popen[bytes]":
    """Start a command line, whose output goes to a file, or where this process's goes.

    Slurm sends SIGTERM to every process of a job, and an mpirun that receives it kills the ranks, which need seconds to
    write a checkpoint. So the process does not receive it: SIGTERM is blocked, and it belongs to a new session.
    """
    errors = None if output is None else subprocess.STDOUT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        return subprocess.Popen(words, stdout=output, stderr=errors, stdin=subprocess.DEVNULL, start_new_session=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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

    def wait(self, process: "subprocess.Popen[bytes]", deadline: float = inf) -> int | None:
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
