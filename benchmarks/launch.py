"""Run the program as a user would, and keep what it says: used by the studies beside this file."""

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

DIVERGED = "diverged\n"  # the last line of a log
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


def run(folder: Path, ranks: int, settings: dict[str, Any], config: Path | None = None) -> dict[str, Any]:
    """The summary of one run of `ranks` ranks; a run that is already there and finished is not repeated."""
    done = folder / "summary.json"
    if not done.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        words = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
        mpirun = Path(sys.executable).with_name("mpirun")
        command = [
            *(str(mpirun), "-n", str(ranks), sys.executable, "-m", "mpitrain"),
            *([str(config)] if config else []),
            "--out",
            str(folder),
            *(part for word in words for part in ("--set", word)),
        ]
        print(f"{folder.name}: {ranks} ranks", flush=True)
        subprocess.run(command, check=True, stdout=(folder.parent / f"{folder.name}.log").open("w"))
    return dict(json.loads(done.read_text()))


def table(header: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def simulate(
    folder: Path, ranks: int, cluster: Path, settings: dict[str, Any], config: Path | None = None
) -> dict[str, Any] | None:
    """As `run`, with simulated ranks in this process; None if the run diverged, which a sweep of rates expects."""
    from mpitrain.__main__ import main

    done, log = folder / "summary.json", folder.parent / f"{folder.name}.log"
    if not done.exists() and not _diverged(log):
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        words = [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
        print(f"{folder.name}: {ranks} simulated ranks", file=sys.stderr, flush=True)
        with log.open("w") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            where = [f"--cluster={cluster}", f"--ranks={ranks}", f"--out={folder}"]
            status = main(["simulate", *([str(config)] if config else []), *where, *words])
        if status == 1 and any(word in log.read_text() for word in ("diverged", "finite")):
            log.write_text(log.read_text() + DIVERGED)
        elif status:
            raise RuntimeError(f"{folder.name}: exit status {status}, see {log}")
    return None if _diverged(log) else json.loads(done.read_text())


def converged(
    folder: Path, ranks: int, cluster: Path, settings: dict[str, Any], config: Path | None = None
) -> dict[str, Any]:
    """As `simulate`, for studies in which no run may diverge."""
    told = simulate(folder, ranks, cluster, settings, config)
    if told is None:
        raise RuntimeError(f"{folder.name}: diverged")
    return told


def _diverged(log: Path) -> bool:
    return log.exists() and log.read_text().endswith(DIVERGED)
