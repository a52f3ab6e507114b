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
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from mpitrain.checkpoint.documents import checksum
from mpitrain.errors import BadInput, first_line
from mpitrain.training.siblings import OWN, Siblings

FOLDER = "model"  # of a run folder, with the copies


@dataclass(frozen=True)
class Named:
    """A function of the user's, the file that it is in, and the modules beside it."""

    function: Callable[..., object]
    path: Path
    siblings: Siblings

    def __call__(self, *arguments: object, **options: object) -> object:
        """Call it; it may import the modules beside it."""
        with self.siblings.present():
            return self.function(*arguments, **options)

    def texts(self) -> dict[str, str]:
        """The texts of the file and of all modules imported from its folder, by their paths there."""
        paths = {self.path.absolute(), *self.siblings.paths()}
        return {str(p.relative_to(self.path.parent.absolute())): p.read_text(encoding="utf-8") for p in sorted(paths)}


#: The files that were executed, with what is beside them, by the names of their modules.
_executed: dict[str, tuple[ModuleType, Siblings]] = {}


def function(key: str, spec: str, where: Path | None = None) -> Named:
    """The function that `key = spec` names; a FILE.py is taken from the folder `where`, if given.

    Raises BadInput naming the key.
    """
    name = f"{key} = {spec!r}"
    source, colon, called = spec.rpartition(":")
    if not (colon and source and called.isidentifier()):
        raise BadInput(f"{name}: expected 'FILE.py:function' or 'package.module:function'")
    try:
        if is_file(spec):
            module, siblings = _of_file(Path(source) if where is None else where / Path(source).name, name)
        else:
            module = importlib.import_module(source)
            siblings = Siblings(Path(module.__file__ or source).parent)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{name}: cannot be imported: {type(error).__name__}: {first_line(error)}") from error
    found = getattr(module, called, None)
    if not callable(found):
        raise BadInput(f"{name}: there is no function {called} in {source}")
    return Named(found, Path(module.__file__ or source), siblings)


def is_file(spec: str) -> bool:
    """Whether it names a file, not a module."""
    return spec.rpartition(":")[0].endswith(".py")


def _of_file(path: Path, name: str) -> tuple[ModuleType, Siblings]:
    """The module of a file, executed once as long as neither the file changes nor what it has imported beside it."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{name}: {path}: {error.strerror}") from error
    folder = str(path.parent.absolute())
    known = f"{OWN}{path.stem}_{hashlib.sha256(content + folder.encode()).hexdigest()[:16]}"
    if known in _executed and _executed[known][1].unchanged():
        return _executed[known]
    spec = importlib.util.spec_from_file_location(known, path)
    assert spec is not None and spec.loader is not None
    module, siblings = importlib.util.module_from_spec(spec), Siblings(path.parent)
    sys.modules[known] = module
    try:
        with siblings.present():
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[known]
        raise
    _executed[known] = module, siblings
    return module, siblings


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
