"""Read run folders: configuration, records and summary, also of runs that were killed, stopped or resumed."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from mpitrain.checkpoint.lease import in_use
from mpitrain.config import flat, parse_toml
from mpitrain.errors import BadInput, naming, printable
from mpitrain.files import Record, read_text
from mpitrain.report.html import duration
from mpitrain.report.records import finite, read_records, read_summary

ENDS = {"finished": "finished", "stopped": "stopped by a signal", "diverged": "diverged", "incomplete": "incomplete"}
KILLED, ALIVE = "killed, left no record", "still running"


@dataclass(frozen=True)
class RunSession:
    """The part of a run from one start of the program to the next. `repeated`: samples that this session recorded and
    the next one trained again."""

    ranks: float | None
    began: float  # samples that the run had trained on when the session began; `ended`: when it ended
    ended: float
    seconds: float
    end: str
    silent: tuple[int, ...] = ()  # the ranks that were named as silent or dead
    repeated: float = 0.0


@dataclass(frozen=True)
class StoredRun:
    """A run as stored on disk. `name` distinguishes it from the other runs of the report and is printable."""

    folder: Path
    name: str
    config: Record  # "training.epochs" → value
    records: list[Record]  # without those that a later resume discarded
    summary: Record | None  # None if the run is not finished
    failed: bool  # whether its last session ended with an error, and none was announced to follow
    marks: list[str]  # remarks that a reader should know before comparing it
    sessions: list[RunSession]
    running: bool  # whether a process uses the folder

    def events(self, *names: str) -> list[Record]:
        """The records of these kinds, in the order of writing."""
        return [record for record in self.records if record["event"] in names]

    def by_samples(self, *names: str) -> list[Record]:
        """The records of these kinds, in the order of training: late evaluations are written at its end."""
        return sorted(self.events(*names), key=lambda record: finite(record, "samples") or 0.0)

    @property
    def finished(self) -> bool:
        """Whether the training was completed."""
        return self.summary is not None and self.summary.get("exit_reason") == "finished"

    @property
    def over(self) -> bool:
        """Whether its records end, as far as is known: `launch` starts a run again that has lost a rank."""
        return self.summary is not None or (self.failed and not any(last.silent for last in self.sessions[-1:]))

    @property
    def results(self) -> Record:
        """The summary; what it lacks, such as the error of a stopped run, is taken from the last record that has it;
        the training loss from the last evaluation, as a record "train" has only the mean since the one before."""
        found: Record = {"algorithm": self.config.get("algorithm.name")}
        for record in [*self.by_samples("start", "train", "evaluate"), self.summary or {}]:
            found |= {
                key: value
                for key, value in record.items()
                if value is not None and (record.get("event"), key) != ("train", "train_loss")
            }
        return found

    @property
    def speed(self) -> float | None:
        """Samples a second of the whole run; `samples_per_second` in a summary is the speed since the last resume."""
        samples, seconds = (finite(self.results, key) for key in ("samples", "seconds"))
        return samples / seconds if samples and seconds else None

    @property
    def samples_of_epoch(self) -> float:
        """The number of samples of the training part; 1 if it does not follow from any record."""
        for record in self.events("train", "evaluate"):
            samples, epoch = finite(record, "samples"), finite(record, "epoch")
            if samples and epoch and 0 < samples / epoch < float("inf"):
                return samples / epoch
        return 1.0

    @property
    def progress(self) -> str:
        """How much of the training is done, and how long the rest will take at the speed of the current session."""
        if not self.sessions:  # its first record is still to come
            return "running"
        epochs, session = finite(self.config, "training.epochs"), self.sessions[-1]
        total, done = (epochs or 0.0) * self.samples_of_epoch, session.ended - session.began
        if not total or done <= 0:
            return "running"
        left = duration(round(session.seconds * max(total - session.ended, 0.0) / done)).split()
        return f"running, {min(session.ended / total, 1.0):.0%}, {' '.join(left[:2])} left"


def read_runs(folders: list[Path]) -> list[StoredRun]:
    """The runs in these folders. Raises BadInput naming the first folder that is not a run or is given twice."""
    where = [folder.resolve() for folder in folders]
    for number, folder in enumerate(where):
        if folder in where[:number]:
            raise BadInput(f"{folders[number]}: given twice")
    depth = 1  # how many of the last components of its path name a run: as many as distinguish all folders
    while len({folder.parts[-depth:] for folder in where}) < len(where):
        depth += 1
    return [read_run(folder, "/".join(there.parts[-depth:])) for folder, there in zip(folders, where, strict=True)]


def read_run(folder: Path, name: str) -> StoredRun:
    """The run in a folder. Raises BadInput naming the folder or an invalid file."""
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder")
    if not (folder / "metrics.jsonl").is_file():
        raise BadInput(f"{folder}: not a run folder, it has no metrics.jsonl")
    records, left_out = read_records(folder / "metrics.jsonl")
    starts = [number for number, record in enumerate(records) if record["event"] == "start"]
    last = {record["event"] for record in records[max(starts, default=0) :]}
    summary = read_summary(folder / "summary.json")
    if "end" not in last:  # the summary belongs to an earlier part: the run was resumed
        summary = None
    failed, marks = "failed" in last and "restart" not in last, list[str]()
    running = summary is None and not failed and in_use(folder)
    if summary is None:
        marks += [] if running else ["failed" if failed else "unfinished"]
    elif summary.get("exit_reason") != "finished":
        marks.append(str(summary.get("exit_reason")))
    marks += [kind for kind in ("phantom", "simulated") if summary and summary.get(kind)][:1]
    if resumes := sum(bool(records[number].get("resumed")) for number in starts):
        marks.append("resumed" if resumes == 1 else f"resumed {resumes} times")
    config, kept = read_config(folder / "config.toml"), without_repeated(records)
    marks += left_out
    run = StoredRun(folder, printable(name), config, kept, summary, failed, marks, sessions(records, running), running)
    marks[:0] = [run.progress] if running else []
    return run


def read_config(path: Path) -> Record:
    """The configuration as stored, "training.epochs" → value. Raises BadInput naming file and key."""
    with naming(path), naming(f"{path}: not TOML", ValueError, RecursionError):
        config = flat(parse_toml(path, read_text(path)))
    for key, value in config.items():
        try:
            f"{value:g}" if isinstance(value, int) else str(value)
        except (ValueError, OverflowError):  # Python prints no integers of more than 4300 digits, nor as large floats
            raise BadInput(f"{path}: {key}: expected a number of 64 bits, found a huge one") from None
    return config


def without_repeated(records: list[Record]) -> list[Record]:
    """The records without those of training that was repeated because a resume went back before it."""
    kept: list[Record] = []
    for record in records:
        if record["event"] == "start" and record.get("resumed"):
            trained = finite(record, "samples")
            if trained is not None:
                kept = [earlier for earlier in kept if (finite(earlier, "samples") or 0) <= trained]
        kept.append(record)
    return kept


def sessions(records: list[Record], running: bool) -> list[RunSession]:
    """The sessions of a run, of which the last one may be `running`, from all its records, including those that a
    resume discarded."""
    starts = [number for number, record in enumerate(records) if record["event"] == "start"]
    return [_session(records[here:then], records[then:], running) for here, then in pairwise([*starts, len(records)])]


def _session(records: list[Record], later: list[Record], running: bool) -> RunSession:
    start = records[0]
    last = next((each for each in records if each["event"] in ("end", "failed", "restart")), start)
    end, reason, silent = ALIVE if running and not later else KILLED, str(last.get("exit_reason")), tuple[int, ...]()
    if last["event"] == "end":
        end = ENDS.get(reason, reason)
    elif last is not start:
        end, lost = str(last.get("text")), last.get("lost_ranks") or ()
        silent = tuple(last.get("silent") or [rank for rank, _ in lost])  # type: ignore  # was checked
    began, since = finite(start, "samples") or 0.0, finite(start, "seconds") or 0.0
    samples, seconds = (max(finite(each, key) or 0.0 for each in records) for key in ("samples", "seconds"))
    again = finite(later[0], "samples") if later else None
    repeated = 0.0 if again is None else max(samples - again, 0.0)
    return RunSession(finite(start, "ranks"), began, samples, seconds - since, end, silent, repeated)
