"""Execute a file of the user's own, and the modules beside it, as a package with a name of its own.

Like a script, the file imports what lies beside it by bare names. Two files may each have a `layers.py` beside them,
and so may the user's own program. So these modules have names in `sys.modules` that no others have, and import
statements in their code, whenever they are executed, look among these modules first; `sys.path` and the names of other
modules stay as they are. What is executed is the text that was read, which a run folder keeps: no bytecode is used.
"""

import builtins
import hashlib
import importlib.abc
import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePosixPath
from types import ModuleType

import msgspec

from mpitrain.training.sources import OTHERS, Sources

#: What the names of these modules begin with in `sys.modules`, where they stay.
OWN = "_mpitrain_"


def execute(sources: Sources) -> ModuleType:
    """The module of the first file, executed once as long as no text changes. Raises what the code raises."""
    digest = hashlib.sha256(msgspec.json.encode(sources)).hexdigest()
    stem = re.sub(r"\W", "_", sources.path.stem)
    root = f"{OWN}{stem}_{digest[:16]}"
    if root in sys.modules:
        return sys.modules[root]
    package = _packages[root] = _Package(root, sources)
    spec = package.spec("")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[root] = sys.modules[f"{root}.{sources.path.stem}"] = module  # modules beside it may import it, too
    try:
        spec.loader.exec_module(module)
    except BaseException:
        for name in [name for name in sys.modules if name.partition(".")[0] == root]:
            del sys.modules[name]
        raise
    return module


class _Package:
    """Where the import statements of one `Sources` find its modules: the first file is the package `root`, and the
    others are modules in it."""

    def __init__(self, root: str, sources: Sources) -> None:
        self._root, self._sources = root, sources
        self._places = {"": sources.first}  # by the modules' dotted names; "" for a folder without __init__.py
        for name in sources.texts:
            module = name.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
            self._places[module] = name
            for parent in PurePosixPath(name).parents[:-1]:
                self._places.setdefault(str(parent).replace("/", "."), "")
        self._tops = {module.partition(".")[0] for module in self._places} - OTHERS
        #: What the code sees as Python's built-in functions: an import statement calls `__import__` of these.
        self._builtins = {**vars(builtins), "__import__": self._import}

    def spec(self, module: str) -> ModuleSpec:
        """Where a module comes from. Raises ModuleNotFoundError."""
        full, folder = f"{self._root}.{module}".removesuffix("."), self._sources.folder
        name = self._places.get(module)
        if name is None:
            known = "an import statement finds the modules that one of the files names, and no others"
            raise ModuleNotFoundError(f"No module named {module!r} beside {self._sources.path}: {known}", name=full)
        if not name:
            spec = ModuleSpec(full, None, is_package=True)
            spec.submodule_search_locations = [str(folder / module.replace(".", "/"))]
            return spec
        is_package = not module or name.endswith("/__init__.py")
        loader = _Loader(folder / name, self._sources.texts[name], self._builtins)
        search = [str((folder / name).parent)] if is_package else None
        located = importlib.util.spec_from_file_location
        found = located(full, folder / name, loader=loader, submodule_search_locations=search)
        assert found is not None
        return found

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """`__import__` that looks for an absolute name in this package first."""
        top = name.partition(".")[0]
        if level or top not in self._tops:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        leaf = builtins.__import__(f"{self._root}.{name}", globals, locals, fromlist or (), 0)
        return leaf if fromlist else sys.modules[f"{self._root}.{top}"]


class _Loader(importlib.abc.ExecutionLoader):
    """Executes one text, which sees these built-in functions."""

    def __init__(self, path: Path, source: str, functions: Mapping[str, object]) -> None:
        self._path, self._source, self._functions = path, source, functions

    def get_filename(self, fullname: str) -> str:
        """The path of the file."""
        return str(self._path)

    def get_source(self, fullname: str) -> str:
        """The text."""
        return self._source

    def exec_module(self, module: ModuleType) -> None:
        """Execute the text in the module."""
        vars(module)["__builtins__"] = self._functions
        super().exec_module(module)


class _Finder:
    """Finds the modules of the packages above, and no others."""

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The place of a module; None if it is not in one of the packages."""
        root, _, module = fullname.partition(".")
        return _packages[root].spec(module) if root in _packages else None


_packages: dict[str, _Package] = {}
sys.meta_path.insert(0, _Finder)
