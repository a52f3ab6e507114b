"""The trials of a search: each is a training in a process of its own, whose outcome is kept in a file."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

import msgspec
import tomli_w

from mpitrain.api.launching import kill, last_words, logged, start, waited
from mpitrain.errors import BadInput, naming, printable
from mpitrain.files import Record, checksum, read_whole, sealed_json, unsealed_json, write_whole
from mpitrain.monitoring.records import merit_of
from mpitrain.report.advice.candidates import Candidate
from mpitrain.report.records import finite
from mpitrain.report.runs import read_run
from mpitrain.signals import STOPPED, Stop
from mpitrain.stopwatch import shares

GRACE = 10.0  # seconds that a training has to end after a stop request
#: Evaluations take no time, nothing is written that nobody reads, and all ranks train.
QUIET: Record = {
    "run.evaluate_late": True,
    "run.checkpoint_every": 0,
    "run.checkpoint_best": False,
    "run.callback": "",
    "run.tensorboard": False,
    "run.trace": False,
    "run.record_order": False,
    "run.gradient_statistics": False,
    "run.lost_ranks": "end",
    "run.spares": 0,
}


@dataclass(frozen=True)
class Trial:
    """A candidate's training for `epochs`, evaluated at `points` points of it. A `phantom` computes no gradients."""

    candidate: Candidate
    epochs: float
    seed: int
    points: int = 0
    phantom: bool = False

    @property
    def name(self) -> str:
        """The name of its run folder."""
        kind = "phantom" if self.phantom else f"{self.epochs:.4g}"
        return f"{self.candidate.number:03d}-{self.candidate.algorithm}-{kind}-s{self.seed}"

    def settings(self) -> list[str]:
        """Command-line words that override keys of its candidate's configuration."""
        own: Record = {"training.epochs": self.epochs, "training.seed": self.seed}
        own["run.evaluate_every"] = self.epochs / self.points if self.points else 0
        if self.phantom:
            own["pretraining.method"] = "none"  # which takes no time from the training
        return [word for key, value in (QUIET | own).items() for word in ("--set", f"{key}={json.dumps(value)}")]


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a trial: its summary and curve, or `why` it did not finish; `wall`: seconds from start to end;
    `lasts`: whether it would be the same another time, unlike that of one that was stopped or lost a rank."""

    name: str
    why: str = ""
    wall: float = 0.0
    summary: Record = {}
    curve: list[Record] = []
    samples_of_epoch: float = 0.0
    part: str = "test"
    lasts: bool = True

    def number(self, key: str) -> float:
        """A number of the summary; 0 where there is none."""
        return finite(self.summary, key) or 0.0

    @property
    def speed(self) -> float:
        """Samples a second."""
        return self.number("samples") / max(self.number("seconds"), 1e-9)

    @property
    def computing(self) -> float:
        """The share of the workers' time in which they compute."""
        ranks = msgspec.convert(self.summary.get("time", []), list[dict[str, float]], strict=False)
        return shares([each for each in ranks if each["computing"]])["computing"]


def outcome(trial: Trial, folder: Path, log: Path, status: int, wall: float) -> Outcome:
    """The outcome of a trial whose process ended with `status` after `wall` seconds. The run folder need not exist."""
    run = None
    with suppress(BadInput):
        run = read_run(folder, trial.name)
    if status or run is None or not run.finished:
        told = run is not None and run.over and run.results.get("exit_reason") != "stopped"
        why = printable(last_words(logged(log), status))
        return Outcome(trial.name, why, wall, lasts=told or status == 2)
    merit = merit_of(run.results)
    # dev, if there is one: a candidate chosen by its test error looks better on the test set than it is
    part = "dev" if f"dev_{merit}" in run.results else "test"
    names = {"seconds": "seconds", "samples": "samples", "merit": f"{part}_{merit}"}
    evaluated = [{name: finite(each, key) for name, key in names.items()} for each in run.events("evaluate")]
    curve: list[Record] = [{**each} for each in evaluated if None not in each.values()]
    return Outcome(trial.name, "", wall, run.summary or {}, curve, run.samples_of_epoch, part)


@dataclass
class Trials:
    """Trials on `ranks` ranks, `processes` at a time, in `folder`. `where`: what else the outcomes depend on, such as
    the cluster and the user's code; `words`: what command lines begin with; `earlier`: the seconds of the trials that
    an earlier search made."""

    folder: Path
    ranks: int
    processes: int
    where: Record
    words: list[str]
    stop: Stop
    earlier: float = 0.0

    def carry_out(self, trials: Sequence[Trial], until: float, said: Callable[[int], None]) -> dict[str, Outcome]:
        """The outcomes by name, without trials that had not ended at `until` (time.monotonic) or when a stop was
        requested. `said` is called with the number of outcomes so far."""
        found = {trial.name: each for trial in trials if (each := self._kept(trial)) is not None}
        self.earlier += sum(each.wall for each in found.values())
        left = list({trial.name: trial for trial in trials if trial.name not in found}.values())
        running: dict[subprocess.Popen[bytes], tuple[Trial, float]] = {}
        while left or running:
            over = self.stop.flag or time.monotonic() >= until
            while left and len(running) < self.processes and not over:
                trial = left.pop(0)
                running[self._start(trial)] = trial, time.monotonic()
            for process in [each for each in running if each.poll() is not None or over]:
                trial, began = running.pop(process)
                if process.poll() is None:
                    _end(process)
                else:
                    found[trial.name] = self._ended(trial, process.returncode, time.monotonic() - began)
                    if process.returncode == STOPPED:  # a batch system has signalled its ranks, and may not signal us
                        self.stop.ask()
            left = [] if over else left
            said(len(found))
            time.sleep(0.02)
        return found

    def run_folder(self, name: str) -> Path:
        """The run folder of the trial called `name`."""
        return self.folder / "runs" / name

    def _start(self, trial: Trial) -> "subprocess.Popen[bytes]":
        config = self.folder / "candidates" / f"{trial.candidate.number:03d}-{trial.candidate.algorithm}.toml"
        write_whole(config, f"# {trial.candidate.shown}\n{tomli_w.dumps(trial.candidate.table)}")
        run = self.run_folder(trial.name)
        rmtree(run, ignore_errors=True)
        words = [*self.words, str(config), "--out", str(run), *trial.settings(), *["--phantom"] * trial.phantom]
        with naming(log := Path(f"{run}.log")):
            run.parent.mkdir(parents=True, exist_ok=True)
            opened = log.open("w")
        with opened:
            return start(words, opened)

    def _ended(self, trial: Trial, status: int, wall: float) -> Outcome:
        run = self.run_folder(trial.name)
        found = outcome(trial, run, Path(f"{run}.log"), status, wall)
        rmtree(run if trial.phantom else run / "checkpoints", ignore_errors=True)
        if found.lasts:
            fields = {"of": self._of(trial), **msgspec.to_builtins(found)}
            write_whole(self._file(trial), sealed_json(fields))
        return found

    def _kept(self, trial: Trial) -> Outcome | None:
        """The outcome from an earlier search; None if there is none, or if it is damaged or had other settings."""
        try:
            fields = unsealed_json(read_whole(self._file(trial)))
            return msgspec.convert(fields, Outcome) if fields.pop("of", None) == self._of(trial) else None
        except (OSError, ValueError):
            return None

    def _file(self, trial: Trial) -> Path:
        return self.folder / "trials" / f"{trial.name}.json"

    def _of(self, trial: Trial) -> str:
        told = [self.where, self.ranks, trial.candidate.table, trial.settings()]
        return checksum(json.dumps(told, sort_keys=True, default=str))


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGUSR1)  # which mpirun passes on to the ranks
    if waited(process, GRACE) is None:
        kill(process)
