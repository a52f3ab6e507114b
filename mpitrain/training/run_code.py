"""Which code the network of a run folder is built of, and whether it may be executed.

A run folder, and each of its checkpoints, keeps the user's files that the network was built of and that its data came
from: their texts in `model/import/`, `model/loss/`, `model/metric/` and `data/import/`, their checksums in model.json
and data.json. A run goes on, and is evaluated, with the code that it was trained with: the files that the configuration
names if they are unchanged, otherwise the run's copies. The user is told which files are executed before that happens.
The folder of another user needs the caller's trust.
"""

import json
import os
import pwd
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from mpitrain.checkpoint import CONFIG
from mpitrain.errors import BadInput, naming, say
from mpitrain.files import read_whole
from mpitrain.training import sources, user_code
from mpitrain.training.sources import Sources
from mpitrain.training.user_code import Code, Name

NAME, DATA = "model.json", "data.json"
GIVEN = "python:model"  # stands for a module that was given to `train` in Python, and has no name
LARGEST = 1 << 24  # bytes of a model.json


class ModelRecord(msgspec.Struct, frozen=True):
    """model.json: what the module was built of. `files` are the checksums of the texts, per key."""

    spec: str = msgspec.field(name="import")
    loss: str
    options: dict[str, object]
    input_shape: list[int]
    classes: int
    parameters: list[tuple[str, list[int]]]
    files: dict[str, dict[str, str]]
    torch: str
    metric: str = ""


class DataRecord(msgspec.Struct, frozen=True):
    """data.json: where data of the user's own came from. `files` are the checksums of the texts."""

    spec: str = msgspec.field(name="import")
    options: dict[str, object]
    files: dict[str, dict[str, str]]


@dataclass(frozen=True)
class RunFolder:
    """A run folder whose configuration names code. Copies of the code are in `kept`: a checkpoint, which has the
    configuration, too, or the folder, with `config` elsewhere. `trust`: execute the code whoever owns it. `new_code`:
    take the named files as they are now."""

    path: Path
    kept: Path
    trust: bool = False
    new_code: bool = False
    config: Path | None = None


def choose(specs: Mapping[str, str], run: RunFolder | None) -> dict[str, Code]:
    """The code of each key, not yet executed; if a run folder names it, the user is told what will be.

    Raises BadInput naming the key, a copy that was changed, or a folder of another user.
    """
    for key, spec in specs.items():
        if spec == GIVEN:
            raise BadInput(f"{key} = {spec!r}: the run was given its module in Python; give it to load or train again")
    names = [user_code.parse(key, spec) for key, spec in specs.items()]
    if run is None or not names:
        return {name.key: user_code.read(name) for name in names}
    if not run.trust:
        _require_own(run, names)
    chosen = {}
    for name in names:
        kept = read(run.kept, name.key)
        same = kept is not None and msgspec.to_builtins(kept).get(name.key.partition(".")[2]) == name.spec
        chosen[name.key], why = _chosen(name, run, kept.files.get(name.key, {}) if kept is not None and same else {})
        say(f"{name}: executing {user_code.place(chosen[name.key])}{why}")
    return chosen


def _chosen(name: Name, run: RunFolder, sums: dict[str, str]) -> tuple[Code, str]:
    """The code of a name, and why it is this one."""
    if not sums or run.new_code or not name.is_file:
        code = user_code.read(name)
        changed = _first_difference(code.sources, sums) if sums else None
        known = "--new-code" if run.new_code else "a module is imported as it is"
        return code, "" if changed is None else f"; {changed} is not what the run was trained with ({known})"
    try:
        code = user_code.read(name)
        changed = _first_difference(code.sources, sums)
        if changed is None:
            return code, ""
        why = f"{changed} is not what the run was trained with; --new-code takes it as it is now"
    except BadInput:
        why = f"{name.source} cannot be read here"
    return Code(name, _copy(name, run, sums)), f", the run's copy: {why}"


def _first_difference(found: Sources | None, sums: dict[str, str]) -> Path | None:
    """The first file that does not have its checksum, or is missing or new; None if there is none."""
    if found is None:
        return None
    own = found.sums()
    return next((found.folder / name for name in sorted({*own, *sums}) if own.get(name) != sums.get(name)), None)


def _copy(name: Name, run: RunFolder, sums: dict[str, str]) -> Sources:
    """The run's copy of the files with these checksums. Raises BadInput naming one that was changed."""
    folder, first = run.kept / folder_of(name.key), Path(name.source).name
    for file in sums:
        if PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts:
            raise BadInput(f"{run.kept / record_of(name.key)}: {file!r} is not in {folder}")
    copy = Sources(os.fsencode(folder.absolute()), first, {file: sources.text(folder / file) for file in sums})
    changed = _first_difference(copy, sums)
    if changed is not None or first not in sums:
        raise BadInput(f"{changed or folder / first}: does not match its checksum in {run.kept / record_of(name.key)}")
    return copy


def folder_of(key: str) -> str:
    """The folder in a run folder with the texts of a key's files, such as model/import."""
    return key.replace(".", "/")


def record_of(key: str) -> str:
    """The name of the file with the checksums of a key's files."""
    return DATA if key.startswith("data.") else NAME


def texts(code: Mapping[str, Code]) -> dict[str, str]:
    """The texts of the code's files by their paths in a run folder."""
    return {f"{folder_of(key)}/{name}": text for key, each in code.items() for name, text in each.texts.items()}


def sums(code: Mapping[str, Code]) -> dict[str, dict[str, str]]:
    """The checksums of the code's files, per key."""
    return {key: {} if each.sources is None else each.sources.sums() for key, each in code.items()}


def read(folder: Path, key: str) -> ModelRecord | DataRecord | None:
    """The record of a key's code in a run folder or a checkpoint, None where there is none. Raises BadInput naming the
    file."""
    path = folder / record_of(key)
    kind: type[ModelRecord | DataRecord] = DataRecord if key.startswith("data.") else ModelRecord
    with naming(path, OSError, ValueError, RecursionError), suppress(FileNotFoundError):
        return msgspec.convert(json.loads(read_whole(path, LARGEST)), kind)  # msgspec reads no infinite options
    return None


def _require_own(run: RunFolder, names: Sequence[Name]) -> None:
    """Raise BadInput if another user owns the folder, or a file of it that names code or is executed."""
    inside, copies = os.path.realpath(run.path), [run.kept / folder_of(name.key) for name in names]
    named = (Path(os.path.realpath(name.source)) for name in names if name.is_file)
    own = [path for path in named if path.is_relative_to(inside)]
    for folder in copies:
        with naming(folder):
            own += [folder.parent, folder, *folder.rglob("*")]
    records = [run.kept / record_of(name.key) for name in names]
    for path in (run.path, run.config or run.kept / CONFIG, run.kept, *records, *own):
        with suppress(OSError):  # there is no such file
            owner = path.stat().st_uid
            if owner != os.geteuid():
                raise BadInput(
                    f"{path}: belongs to {_user(owner)}; the code that {run.path} names, {', '.join(map(str, names))}, "
                    "is executed only with --trust (in Python trust=True)"
                )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
