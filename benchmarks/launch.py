"""Run the program as a user would, and keep what it says: used by the studies beside this file."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def run(
    folder: Path, ranks: int, settings: dict[str, Any], config: Path | None = None, cluster: Path | None = None
) -> dict[str, Any]:
    """The summary of one run of `ranks` ranks; a run that is already there and finished is not repeated.

    With the file of a `cluster` the ranks are simulated.
    """
    done = folder / "summary.json"
    if not done.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        words = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
        mpirun = Path(sys.executable).with_name("mpirun")
        command = [str(mpirun), "-n", str(ranks), sys.executable, "-m", "mpitrain"]
        if cluster:
            command = [sys.executable, "-m", "mpitrain", "simulate", "--cluster", str(cluster), "--ranks", str(ranks)]
        command += [
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
