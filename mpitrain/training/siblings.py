"""The modules beside a user's file, which that file imports by their bare names.

Two files may each have a `layers.py` beside them, and so may the user's own program: each imports its own. So the
modules of a folder are in `sys.modules`, and the folder on `sys.path`, only while the file is executed and while the
function that it gives is called.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import xxhash

#: What the names of the user's files begin with in `sys.modules`, where they stay.
OWN = "_mpitrain_"
#: Names of modules that are nobody's siblings.
KEPT = {*sys.stdlib_module_names, __name__.partition(".")[0]}


class Siblings:
    """The modules of `folder`. `present` is the context in which they are imported."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._modules: dict[str, ModuleType] = {}
        self._sums: dict[Path, str] = {}

    @contextmanager
    def present(self) -> Iterator[None]:
        """Import from the folder; what is loaded from it meanwhile is this file's alone."""
        offered = {path.stem if path.suffix == ".py" else path.name for path in self._folder.iterdir()} - KEPT
        before = {name: m for name, m in sys.modules.items() if name.partition(".")[0] in offered and self._is_other(m)}
        for name in before:
            del sys.modules[name]
        there = set(sys.modules)
        sys.modules.update(self._modules)
        sys.path.insert(0, str(self._folder))  # as Python does for a script
        try:
            yield
        finally:
            sys.path.remove(str(self._folder))
            loaded = {name: module for name, module in sys.modules.items() if name not in there}
            self._modules = {name: m for name, m in loaded.items() if self._lies_here(m) and name[: len(OWN)] != OWN}
            for name in self._modules:
                del sys.modules[name]
            sys.modules.update(before)
            for path in self.paths():
                self._sums.setdefault(path, _checksum(path))

    def paths(self) -> list[Path]:
        """The files that were imported from the folder."""
        shared = [module for name, module in list(sys.modules.items()) if name != "__main__"]  # with the user's program
        modules = [module for module in (*self._modules.values(), *shared) if self._lies_here(module)]
        return sorted({Path(module.__file__ or "") for module in modules})

    def unchanged(self) -> bool:
        """Whether the files are what they were when they were imported."""
        return all(path.exists() and _checksum(path) == wanted for path, wanted in self._sums.items())

    def _lies_here(self, module: ModuleType) -> bool:
        file = getattr(module, "__file__", None)
        if not isinstance(file, str):
            return False
        path = Path(file)
        return path.suffix == ".py" and path.is_relative_to(self._folder) and "site-packages" not in path.parts

    def _is_other(self, module: ModuleType) -> bool:
        """Whether it is neither installed nor of this folder."""
        file = getattr(module, "__file__", None)
        return isinstance(file, str) and "site-packages" not in file and not self._lies_here(module)


def _checksum(path: Path) -> str:
    return xxhash.xxh3_128_hexdigest(path.read_bytes())
