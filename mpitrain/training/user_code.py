"""Functions of the user's own, which the configuration names as "FILE.py:function" or "package.module:function".

A run folder keeps the file, and those modules beside it that it imports, with their checksums: model.json lists them.
Later the run uses the files that the configuration names as long as they are what the run began with, and otherwise its
own copies, after it has said so.
"""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

from mpitrain.checkpoint.documents import checksum
from mpitrain.errors import BadInput, first_line

FOLDER = "model"  # of a run folder, with the copies


def function(key: str, spec: str, where: Path | None = None) -> tuple[Callable[..., object], Path]:
    """The function that `key = spec` names, and the file that it is in; a FILE.py is taken from the folder `where`, if
    given. Raises BadInput naming the key."""
    name = f"{key} = {spec!r}"
    source, colon, called = spec.rpartition(":")
    if not (colon and source and called.isidentifier()):
        raise BadInput(f"{name}: expected 'FILE.py:function' or 'package.module:function'")
    try:
        module = _of_file(Path(source) if where is None else where / Path(source).name, name) if is_file(spec) else None
        module = module or importlib.import_module(source)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{name}: cannot be imported: {type(error).__name__}: {first_line(error)}") from error
    found = getattr(module, called, None)
    if not callable(found):
        raise BadInput(f"{name}: there is no function {called} in {source}")
    return found, Path(module.__file__ or source)


def is_file(spec: str) -> bool:
    """Whether it names a file, not a module."""
    return spec.rpartition(":")[0].endswith(".py")


def _of_file(path: Path, name: str) -> ModuleType:
    """The module of a file, executed once as long as the file does not change."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{name}: {path}: {error.strerror}") from error
    folder = str(path.parent.absolute())
    if folder not in sys.path[:1]:
        sys.path.insert(0, folder)  # for the modules beside it, as Python does for a script
    known = f"_mpitrain_{path.stem}_{hashlib.sha256(content + folder.encode()).hexdigest()[:16]}"
    if known in sys.modules:
        return sys.modules[known]
    spec = importlib.util.spec_from_file_location(known, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[known] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[known]
        raise
    return module


def texts(paths: list[Path]) -> dict[str, str]:
    """The texts of these files and of all modules imported from their folders, by their paths there."""
    found: dict[str, str] = {}
    for path in paths:
        folder = path.parent.absolute()
        beside = [Path(f) for n, m in list(sys.modules.items()) if n != "__main__" and (f := _file_of(m))]
        for each in [path.absolute(), *beside]:
            if each.is_relative_to(folder) and each.suffix == ".py" and "site-packages" not in each.parts:
                found[str(each.relative_to(folder))] = each.read_text(encoding="utf-8")
    return found


def _file_of(module: ModuleType) -> str | None:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else None


def folder_to_use(key: str, spec: str, run: Path, sums: Mapping[str, str], say: Callable[[str], None]) -> Path | None:
    """Where to take FILE.py from, None for where the configuration says; `sums` are the checksums that the run keeps.

    Says which code runs instead of what the configuration names. Raises BadInput naming a copy that was changed.
    """
    path = Path(spec.rpartition(":")[0])
    if all(_is(path.parent / name, wanted) for name, wanted in sums.items()):
        return None
    for name, wanted in sums.items():
        if not _is(run / FOLDER / name, wanted):
            raise BadInput(f"{run / FOLDER / name}: does not match its checksum in {run / 'model.json'}")
    changed = next(name for name, wanted in sums.items() if not _is(path.parent / name, wanted))
    there = "is not what it was when the run began" if (path.parent / changed).exists() else "is not here"
    why = f"{path.parent / changed} {there}"
    say(f"{key} = {spec!r}: {why}; executing the run's copy, {run / FOLDER / path.name}")
    return run / FOLDER


def _is(path: Path, wanted: str) -> bool:
    try:
        return checksum(path.read_text(encoding="utf-8")) == wanted
    except (OSError, ValueError):
        return False
