"""Starting a run under the site's launcher, with a deadline, and passing on the signals that end it."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from mpitrain.comparison.matrix import Element
from mpitrain.errors import BadInput

GRACE = 30.0  # seconds that a run has to leave a checkpoint when it is told to end


def launcher(given: str) -> str:
    """The words that start `{ranks}` ranks. Raises BadInput when there is no such program."""
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


def run(element: Element, launch: str, deadline: float) -> str:
    """Run an element to its end, or go on with it; "" or why it is not finished. What it says goes to its log."""
    element.log.parent.mkdir(parents=True, exist_ok=True)
    with element.log.open("a") as log:
        began = log.tell()
        process = subprocess.Popen(
            command(element, launch),
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(deadline)
        except subprocess.TimeoutExpired:
            _end(process)
            status = None
        except KeyboardInterrupt:
            _end(process)
            raise
    if status is None:
        return f"no end within {deadline:.0f} s"
    if status:
        return _last_words(element.log, began) or f"exit status {status}"
    left = element.read()
    ranks = left.results.get("ranks") if left else None
    if ranks != element.ranks:
        return f"ran on {ranks} ranks, not {element.ranks}: is the launcher that of another MPI than mpi4py's?"
    return "" if element.state() == "finished" else "left no summary"


@contextmanager
def signals_passed_on() -> Iterator[None]:
    """SIGTERM, which batch systems send, ends the run as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ask the run to leave a checkpoint; kill its group when it does not end."""
    process.terminate()
    try:
        process.wait(GRACE)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_words(log: Path, began: int) -> str:
    """The program's own line on why it ended, else the last one of this start."""
    lines = [line for line in log.read_bytes()[began:].decode(errors="replace").splitlines() if line.strip()]
    own = [line.removeprefix("mpitrain: ") for line in lines if line.startswith("mpitrain: ")]
    return (own or lines or [""])[-1][:300]


def _open_mpi(program: str) -> bool:
    try:
        told = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "Open MPI" in told.stdout or "Open MPI" in told.stderr
