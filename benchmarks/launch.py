"""Run the program as a user would, and keep what it says: used by the studies beside this file."""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

DIVERGED = "diverged\n"  # the last line of a log
GRACE = 2.0  # seconds in which a process that is asked to end may do so
#: A simulated node of 64 cores, and a small network for the embedded digits.
CLUSTER, PERCEPTRON = (Path(__file__).resolve().with_name(name) for name in ("cluster.toml", "digits.toml"))
#: A small network for speech, for studies of many runs.
SPEECH: dict[str, Any] = {
    "data.context": [5, 5],
    "model.preset": "chan2014-dnn",
    "model.hidden_layers": 2,
    "model.width": 0.0625,
    "model.dropout": 0.0,
}


def require_ranks(count: int, *, or_more: bool = False) -> None:
    """End the program with status 2 unless mpirun started so many ranks; from now on an error on one rank ends all."""
    from mpi4py import MPI

    from mpitrain.mpi import abort_on_exception

    abort_on_exception()
    ranks = MPI.COMM_WORLD.size
    if ranks != count and not (or_more and ranks > count):
        if MPI.COMM_WORLD.rank == 0:
            wanted = f"{count} ranks{' or more' if or_more else ''}"
            print(f"{sys.argv[0]}: needs {wanted}: mpirun -n {count} python {sys.argv[0]} ...", file=sys.stderr)
        sys.exit(2)


def attempt(
    folder: Path,
    ranks: int,
    settings: dict[str, Any],
    config: Path | None = None,
    program: Sequence[str] = (),
) -> dict[str, Any] | None:
    """The summary of one run of `ranks` ranks; None if it diverged, which a sweep of rates expects. `program` are other
    words than those of mpirun that start the ranks.

    A run that is already there and finished is not repeated. Ends the program with the run's message if it failed.
    """
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    mpirun = [str(Path(sys.executable).with_name("mpirun")), "-n", str(ranks), sys.executable, "-m", "mpitrain"]
    command = [*(program or mpirun), *([str(config)] if config else []), "--out", str(folder), *words]

    def launched(log: TextIO) -> int:
        return subprocess.run(command, check=False, stdout=log, stderr=log).returncode

    return _once(folder, f"{ranks} ranks", launched)


def run(folder: Path, ranks: int, settings: dict[str, Any], config: Path | None = None) -> dict[str, Any]:
    """As `attempt`, for studies in which no run may diverge."""
    return _finished(folder, attempt(folder, ranks, settings, config))


def simulate(
    folder: Path, ranks: int, cluster: Path, settings: dict[str, Any], config: Path | None = None
) -> dict[str, Any] | None:
    """As `attempt`, with simulated ranks in this process."""
    from mpitrain.__main__ import main

    words = [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
    where = [f"--cluster={cluster}", f"--ranks={ranks}", f"--out={folder}"]

    def simulated(log: TextIO) -> int:
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            return main(["simulate", *([str(config)] if config else []), *where, *words])

    return _once(folder, f"{ranks} simulated ranks", simulated)


def converged(
    folder: Path, ranks: int, cluster: Path, settings: dict[str, Any], config: Path | None = None
) -> dict[str, Any]:
    """As `simulate`, for studies in which no run may diverge."""
    return _finished(folder, simulate(folder, ranks, cluster, settings, config))


def unscaled(paper: str, folder: Path) -> Path:
    """A paper's cluster as a file in `folder` whose gradients take as long for any network as for the paper's."""
    from mpitrain.api.clusters import find

    folder.mkdir(parents=True, exist_ok=True)
    path, lines = folder / f"{paper}.toml", find(paper).read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("network = ")))
    return path


def free_port() -> int:
    """A port of this host on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(what: str, processes: Sequence["subprocess.Popen[Any]"], seconds: float) -> None:
    """Wait until all processes have ended. When one fails, or after so many seconds, end them all and the program."""
    until = time.monotonic() + seconds
    status, late = 0, False
    try:
        while not status and not late and any(process.poll() is None for process in processes):
            time.sleep(0.02)
            late = time.monotonic() > until
            status = next((process.returncode for process in processes if process.poll()), 0)
    finally:
        end(processes)
    if late and not status:
        sys.exit(f"{what}: no end within {seconds:g} s")
    if status := status or next((process.returncode for process in processes if process.returncode), 0):
        sys.exit(f"{what}: exit status {status}")


def end(processes: Sequence["subprocess.Popen[Any]"]) -> None:
    """End what still runs. mpirun is asked first, so that it ends its ranks."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    until = time.monotonic() + GRACE
    for process in processes:
        try:
            process.wait(max(until - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def table(header: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _once(folder: Path, what: str, go: Callable[[TextIO], int]) -> dict[str, Any] | None:
    """The summary of a whole run in `folder`, after `go` has made it if it is not there; None if the run diverged."""
    done, log = folder / "summary.json", folder.parent / f"{folder.name}.log"
    if not (done.exists() and _summary(done)["exit_reason"] == "finished") and not _diverged(log):
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        print(f"{folder.name}: {what}", file=sys.stderr, flush=True)
        with log.open("w") as file:
            status = go(file)
        text = log.read_text()
        if status == 1 and any(word in text for word in ("diverged", "finite")):
            log.write_text(text + DIVERGED)
        elif status:
            said = [line for line in text.splitlines() if line.startswith("mpitrain: ")] or text.splitlines()[-1:]
            sys.exit(f"{folder.name}: exit status {status}: {' '.join(said[:1])}; see {log}")
    return None if _diverged(log) else _summary(done)


def _summary(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text()))


def _finished(folder: Path, told: dict[str, Any] | None) -> dict[str, Any]:
    if told is None:
        sys.exit(f"{folder.name}: diverged")
    return told


def _diverged(log: Path) -> bool:
    return log.exists() and log.read_text().endswith(DIVERGED)
