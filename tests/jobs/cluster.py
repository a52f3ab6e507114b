"""What the tests do with a Slurm cluster: submit scripts of jobs/, signal jobs, look at what they left."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: What makes any configuration of jobs/configs a training of seconds on the embedded digits.
SMALL = {
    "data.path": "",
    "data.context": "[]",
    "data.crop": "0",
    "data.flip": "false",
    "model.preset": "digits-cnn",
    "stages": "[]",
    "pretraining.method": "none",
    "training.epochs": "2",
    "training.minibatch": "16",
}


def small(**changes: Any) -> list[str]:
    """`--set` options of SMALL with changes, as `training_epochs=3`."""
    settings = {**SMALL, **{key.replace("_", ".", 1): str(value) for key, value in changes.items()}}
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def until(condition: Callable[[], Any], what: str, seconds: float = 300) -> Any:
    """What `condition` returns once it is true; the test fails when that takes too long."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.2)
    return found


@dataclass
class Job:
    """A submitted job, in the folder where it was submitted."""

    number: str
    name: str
    cluster: "Cluster"

    def __str__(self) -> str:
        return f"{self.name} {self.number}"

    @property
    def log(self) -> str:
        """What it has printed, in all its starts."""
        path = self.cluster.folder / f"{self.name}-{self.number}.out"
        return path.read_text() if path.exists() else ""

    @property
    def run(self) -> Path:
        """Its run folder."""
        return self.cluster.folder / "runs" / f"{self.name}-{self.number}"

    def state(self) -> str:
        """RUNNING, PENDING, COMPLETED, ..."""
        told = self.cluster.command("scontrol", "show", "job", self.number)
        return re.search(r"JobState=(\S+)", told).group(1)  # type: ignore[union-attr]

    def ended(self, state: str = "COMPLETED", seconds: float = 300) -> "Job":
        """Itself, once it has ended, which must be so."""
        running = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
        until(lambda: self.state() not in running, f"the end of {self}", seconds)
        assert self.state() == state, self.log
        return self

    def started(self, times: int) -> "Job":
        """Itself, once its ranks have started so many times."""
        log = self.run / "metrics.jsonl"
        until(lambda: log.exists() and log.read_text().count('"event": "start"') >= times, f"start {times} of {self}")
        return self

    def says(self, text: str) -> "Job":
        """Itself, once this stands in its output, which arrives later than what its ranks write into files."""
        until(lambda: text in self.log, f"{text!r} of {self}")
        return self

    def requeued(self, times: int, seconds: float = 300) -> "Job":
        """Itself, once it has gone back into the queue so many times."""
        until(lambda: self.log.count("requeued\n") >= times, f"requeue {times} of {self}", seconds)
        return self

    def signal(self, *options: str) -> None:
        """`scancel` with these options."""
        self.cluster.command("scancel", *options, self.number)

    @property
    def summary(self) -> dict[str, Any]:
        """Its summary.json."""
        return dict(json.loads((self.run / "summary.json").read_text()))

    def processes(self) -> dict[int, str]:
        """Its ranks and their launchers that are still there: number and command line."""
        found = {}
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                found[int(file.parent.name)] = file.read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        mine = f"--continue runs/{self.name}-{self.number}"
        return {number: line for number, line in found.items() if line.strip().endswith(mine)}

    def kill_ranks(self) -> None:
        """SIGKILL to its ranks, not to their launcher."""
        for number, line in self.processes().items():
            if Path(line.split()[0]).name.startswith("python"):
                with suppress(ProcessLookupError):  # Slurm has ended it, since another one has gone
                    os.kill(number, signal.SIGKILL)


@dataclass
class Cluster:
    """A running Slurm and a folder with jobs/ in it to submit from."""

    conf: Path
    folder: Path

    def command(self, *words: str, **variables: str) -> str:
        """Standard output of a command, which must succeed."""
        environment = {**os.environ, "SLURM_CONF": str(self.conf), "VENV": sys.prefix, **variables}
        done = subprocess.run(words, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, name: str, *arguments: str, options: tuple[str, ...] = (), **variables: str) -> Job:
        """Submit jobs/NAME.sbatch as it is, with options of sbatch, arguments of the script, and variables for it."""
        words = ("--time=10", "--cpus-per-task=1", *options, f"jobs/{name}.sbatch", *arguments)
        return Job(self.command("sbatch", "--parsable", *words, **variables).strip(), name, self)
