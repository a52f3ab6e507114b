"""Functions of the user's own, which the configuration names as "FILE.py:function" or "package.module:function"."""

import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from contextlib import chdir
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import msgspec

from mpitrain.config import Config
from mpitrain.errors import BadInput, blaming
from mpitrain.training import sources
from mpitrain.training.sources import INSTALLED, OTHERS, Sources, execute


class Name(msgspec.Struct, frozen=True):
    """What a key names: a function of a file or a module."""

    key: str
    source: str
    called: str

    def __str__(self) -> str:
        return f"{self.key} = {self.spec!r}"

    @property
    def spec(self) -> str:
        """The value of the key."""
        return f"{self.source}:{self.called}"

    @property
    def is_file(self) -> bool:
        """Whether it names a file, not a module."""
        return self.source.endswith(".py")


class Code(msgspec.Struct, frozen=True):
    """The code of a name; nothing of it has been executed. `sources` are the user's own files: those of a FILE.py will
    be executed; those of a module, which Python will import, are known for the record."""

    name: Name
    sources: Sources | None

    @property
    def texts(self) -> Mapping[str, str]:
        """The user's own files, by their paths in a folder."""
        return {} if self.sources is None else self.sources.texts

    def function(self) -> Callable[..., Any]:
        """The function, once the file or module has been executed. Raises BadInput naming the key."""
        source, called = self.name.source, self.name.called
        # the run folder and the data are named from the present folder, whatever the code changes to
        with blaming(self.name, "cannot be imported"), chdir(os.curdir):
            if self.sources is not None and self.name.is_file:
                module = execute(self.sources)
            else:
                module = importlib.import_module(source)
        found = getattr(module, called, None)
        if not callable(found):
            raise BadInput(f"{self.name}: there is no function {called} in {source}")
        return found


def specs_of(config: Config) -> dict[str, str]:
    """The names of the user's own functions in the configuration, by key."""
    model, data = config.model, config.data
    specs = {"model.import": model.import_, "model.loss": model.loss, "model.metric": model.metric}
    return {key: spec for key, spec in (specs | {"data.import": data.import_}).items() if spec}


def parse(key: str, spec: str) -> Name:
    """What `key = spec` names. Raises BadInput naming the key."""
    source, colon, called = spec.rpartition(":")
    if not (colon and source and called.isidentifier()):
        raise BadInput(f"{key} = {spec!r}: expected 'FILE.py:function' or 'package.module:function'")
    return Name(key, source, called)


def read(name: Name) -> Code:
    """The code that a name means now, read and not executed. Raises BadInput naming the key."""
    path = Path(name.source)
    try:
        return Code(name, sources.read(path.parent, path.name) if name.is_file else _own(name.source))
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from error


def place(code: Code) -> Path | str:
    """The file that is executed for some code, or the name of a module that is not found."""
    if code.name.is_file and code.sources is not None:
        return code.sources.path
    found = _located(code.name.source)
    return Path(found.origin) if found is not None and found.origin is not None else code.name.source


def _own(module: str) -> Sources | None:
    """The files of a module of the user's own, None for an installed one."""
    found, top = _located(module), module.partition(".")[0]
    if found is None or found.origin is None or not found.origin.endswith(".py") or top in OTHERS:
        return None
    path = Path(found.origin)
    depth = module.count(".") + (path.name == "__init__.py")
    folder = path.parents[depth]
    if INSTALLED & set(path.parts):
        return None
    return sources.read(folder, path.relative_to(folder).as_posix())


def _located(module: str) -> ModuleSpec | None:
    """Where a module would be imported from: unlike `find_spec`, this executes none of the packages that it is in."""
    top, *parts = module.split(".")
    try:
        found = importlib.util.find_spec(top)
        for end in range(1, len(parts) + 1):
            places = None if found is None else found.submodule_search_locations
            if places is None:
                return None
            found = PathFinder.find_spec(".".join((top, *parts[:end])), places)
    except (ImportError, ValueError, AttributeError):
        return None
    return found
