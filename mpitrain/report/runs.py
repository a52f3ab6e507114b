"""Read run folders: configuration, records and summary, also of runs that were killed, stopped or resumed."""

import json
from dataclasses import dataclass
from pathlib import Path

from mpitrain.config import parse_toml
from mpitrain.errors import BadInput, naming, printable
from mpitrain.files import Record, read_text
from mpitrain.report.sessions import RunSession, sessions
from mpitrain.report.values import fault, finite


@dataclass(frozen=True)
class StoredRun:
    """A run as stored on disk. `name` distinguishes it from the other runs of the report and is printable."""

    folder: Path
    name: str
    config: Record  # "training.epochs" → value
    records: list[Record]  # without those that a later resume discarded
    summary: Record | None  # None if the run is not finished
    marks: list[str]  # remarks that a reader should know before comparing it
    sessions: list[RunSession]

    def events(self, *names: str) -> list[Record]:
        """The records of these kinds, in the order of writing."""
        return [record for record in self.records if record["event"] in names]

    @property
    def finished(self) -> bool:
        """Whether the training was completed."""
        return self.summary is not None and self.summary.get("exit_reason") == "finished"

    @property
    def failed(self) -> bool:
        """Whether its last session ended with an error."""
        return _failed(self.records)

    @property
    def results(self) -> Record:
        """The summary; for an unfinished run, the values of its first and last records."""
        if self.summary is not None:
            return self.summary
        found: Record = {"algorithm": self.config.get("algorithm.name")}
        for record in self.events("start", "train", "evaluate"):
            found |= {key: value for key, value in record.items() if value is not None}
        return found

    @property
    def samples_of_epoch(self) -> float:
        """The size of the training part; 1 if no record contains it."""
        for record in self.events("train", "evaluate"):
            samples, epoch = finite(record, "samples"), finite(record, "epoch")
            if samples and epoch and 0 < samples / epoch < float("inf"):
                return samples / epoch
        return 1.0


def read_runs(folders: list[Path]) -> list[StoredRun]:
    """The runs in these folders. Raises BadInput naming the first folder that is not a run or is given twice."""
    where = [folder.resolve() for folder in folders]
    for place, folder in enumerate(where):
        if folder in where[:place]:
            raise BadInput(f"{folders[place]}: given twice")
    return [read_run(folder, name) for folder, name in zip(folders, _names(where), strict=True)]


def read_run(folder: Path, name: str) -> StoredRun:
    """The run in a folder. Raises BadInput naming the folder or an invalid file."""
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder")
    if not (folder / "metrics.jsonl").is_file():
        raise BadInput(f"{folder}: not a run folder, it has no metrics.jsonl")
    records, marks = read_records(folder / "metrics.jsonl")
    summary = read_summary(folder)
    if summary is not None and not _ended(records):
        summary = None  # it belongs to an earlier part: the run was resumed
    config = read_config(folder / "config.toml")
    marks = [*_marks(records, summary), *marks]
    return StoredRun(folder, printable(name), config, valid(records), summary, marks, sessions(records))


def read_config(path: Path) -> Record:
    """The configuration as stored, "training.epochs" → value. Raises BadInput naming file and key."""
    with naming(path), naming(f"{path}: not TOML", ValueError, RecursionError):
        config = flat(parse_toml(path, read_text(path)))
    for key, value in config.items():
        try:
            str(value)
        except ValueError:  # Python does not print integers of more than 4300 digits
            raise BadInput(f"{path}: {key}: expected a number of 64 bits, found a huge one") from None
    return config


def read_records(path: Path) -> tuple[list[Record], list[str]]:
    """The valid records of a metrics.jsonl, and remarks on what was left out: invalid lines, such as one truncated when
    the run was killed, and values of the wrong type."""
    with naming(path):
        lines = read_text(path, errors="replace").splitlines()
    records = [record for record in map(_record, lines) if record is not None]
    if lines and not records:
        raise BadInput(f"{path}: no line of it is a record")
    broken, wrong = len(lines) - len(records), list[str]()
    for record in records:
        faults = {key: said for key, value in record.items() if (said := fault(key, value))}
        for key, said in faults.items():
            wrong.append(said)
            del record[key]
    marks = [f"{broken} unreadable {'line' if broken == 1 else 'lines'}"] if broken else []
    more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return records, [*marks, *(f"{path.name}: {said}{more}" for said in wrong[:1])]


def read_summary(folder: Path) -> Record | None:
    """The summary.json, if it exists. Raises BadInput naming the file and a key with a value of the wrong type."""
    path = folder / "summary.json"
    with naming(path), naming(f"{path}: not JSON", ValueError, RecursionError):
        if not path.exists():
            return None
        found = json.loads(read_text(path))
    if not isinstance(found, dict):
        raise BadInput(f"{path}: not a JSON object")
    for key, value in found.items():
        if said := fault(key, value):
            raise BadInput(f"{path}: {said}")
    return found


def valid(records: list[Record]) -> list[Record]:
    """The records without those of training that was repeated because a resume went back before it."""
    kept: list[Record] = []
    for record in records:
        if record["event"] == "start" and record.get("resumed"):
            trained = finite(record, "samples")
            if trained is not None:
                kept = [earlier for earlier in kept if (finite(earlier, "samples") or 0) <= trained]
        kept.append(record)
    return kept


def flat(table: Record, prefix: str = "") -> Record:
    """Flatten nested tables, with keys as in `--set`."""
    found: Record = {}
    for key, value in table.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def config_text(run: StoredRun) -> str:
    """The text of the configuration in the run folder."""
    return printable(read_text(run.folder / "config.toml"), keep="\n\t")


def _record(line: str) -> Record | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None


def _ended(records: list[Record]) -> bool:
    return _last(records, "start", "end") == "end"


def _failed(records: list[Record]) -> bool:
    return _last(records, "start", "failed") == "failed"


def _last(records: list[Record], *events: str) -> object:
    return next((record["event"] for record in reversed(records) if record["event"] in events), None)


def _marks(records: list[Record], summary: Record | None) -> list[str]:
    marks = []
    if summary is None:
        marks.append("failed" if _failed(records) else "unfinished")
    elif summary.get("exit_reason") != "finished":
        marks.append(str(summary.get("exit_reason")))
    resumes = sum(record["event"] == "start" and bool(record.get("resumed")) for record in records)
    if resumes:
        marks.append("resumed" if resumes == 1 else f"resumed {resumes} times")
    return marks


def _names(folders: list[Path]) -> list[str]:
    """Names of the folders: as many of the last path components as needed to distinguish all of them."""
    depth = 1
    while len({folder.parts[-depth:] for folder in folders}) < len(folders):
        depth += 1
    return ["/".join(folder.parts[-depth:]) for folder in folders]
