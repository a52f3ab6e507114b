"""A file of the user's own and the modules beside it that it imports: read as text, and executed as a package with a
name of its own.

The modules are those that import statements name, also within functions, which may be called much later. Modules of a
Python installation are not the user's own, wherever it lies.

Like a script, the file imports what lies beside it by bare names. Two files may each have a `layers.py` beside them,
and so may the user's own program. So these modules have unique names in `sys.modules`, and import statements in their
code, whenever they are executed, look among these modules first; `sys.path` and the names of other modules stay as they
are. What is executed is the text that was read, and that a run folder keeps: no bytecode is used.
"""

import ast
import builtins
import hashlib
import importlib.abc
import importlib.util
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePosixPath
from types import ModuleType

import msgspec

from mpitrain.errors import naming
from mpitrain.files import checksum, read_text

#: Modules that a file of the same name beside the user's does not replace.
OTHERS = {*sys.stdlib_module_names, __name__.partition(".")[0]}
#: Folders of installed modules, and files that mark the folder of a Python installation.
INSTALLED, MARKERS = {"site-packages", "dist-packages"}, ("pyvenv.cfg", "conda-meta")
LARGEST = 1 << 24  # bytes of a file
#: What the names of executed modules begin with in `sys.modules`, where they stay.
OWN = "_mpitrain_"


class Sources(msgspec.Struct, frozen=True):
    """The texts of the file `first` and of modules beside it, by their paths in a folder, an absolute path in bytes."""

    absolute: bytes
    first: str
    texts: dict[str, str]

    @property
    def folder(self) -> Path:
        """The folder."""
        return Path(os.fsdecode(self.absolute))

    @property
    def path(self) -> Path:
        """The file that is executed first."""
        return self.folder / self.first

    def sums(self) -> dict[str, str]:
        """The checksums of the texts."""
        return {name: checksum(text) for name, text in self.texts.items()}


def read(folder: Path, first: str) -> Sources:
    """A file and the modules in its folder that it imports, directly or not. Raises BadInput naming a file."""
    texts, pending = dict[str, str](), [first, *_files(folder, first.split("/")[:-1])]
    while pending:
        name = pending.pop()
        if name not in texts:
            texts[name] = text(folder / name)
            pending += (file for module in _named(name, texts[name]) for file in _files(folder, module))
    return Sources(os.fsencode(folder.absolute()), first, dict(sorted(texts.items())))


def text(path: Path) -> str:
    """The text of a source. Raises BadInput naming the file."""
    with naming(path), naming(f"{path}: not UTF-8", ValueError):
        return read_text(path, LARGEST).removeprefix("\ufeff")


def _named(name: str, source: str) -> Iterator[list[str]]:
    """The modules that the import statements of a file may mean, each as the parts of its name."""
    package = name.split("/")[:-1]
    try:
        with warnings.catch_warnings(action="ignore"):
            nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # the error is reported when the file is executed
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names if _may_be_own(alias.name))
        elif isinstance(node, ast.ImportFrom) and (node.level or _may_be_own(node.module or "")):
            base = package[: len(package) + 1 - node.level] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            yield base
            yield from ([*base, alias.name] for alias in node.names)


def _may_be_own(module: str) -> bool:
    return module.partition(".")[0] not in OTHERS


def _files(folder: Path, module: Sequence[str]) -> Iterator[str]:
    """The files of a module and of the packages that it is in, unless they are installed ones."""
    for end in range(1, len(module) + 1):
        stem = "/".join(module[:end])
        found = [name for name in (f"{stem}/__init__.py", f"{stem}.py") if (folder / name).is_file()]
        if found and not _is_installed(folder, PurePosixPath(found[0])):
            yield found[0]


def _is_installed(folder: Path, name: PurePosixPath) -> bool:
    """Whether a file is in a folder of installed modules, or in a Python installation below the user's folder."""
    if INSTALLED & {folder.absolute().name, *name.parts}:
        return True
    return any((folder / parent / mark).exists() for parent in list(name.parents)[:-1] for mark in MARKERS)


def execute(sources: Sources) -> ModuleType:
    """The module of the first file, executed once as long as no text changes. Raises what the code raises."""
    digest = hashlib.sha256(msgspec.json.encode(sources)).hexdigest()
    stem = re.sub(r"\W", "_", sources.path.stem)
    root = f"{OWN}{stem}_{digest[:16]}"
    if root in sys.modules:
        return sys.modules[root]
    package = _Package(root, sources)
    sys.meta_path.insert(0, package)
    try:
        return importlib.import_module(root)
    except BaseException:
        sys.meta_path.remove(package)
        for name in [name for name in sys.modules if name.partition(".")[0] == root]:
            del sys.modules[name]
        raise


class _Package(importlib.abc.MetaPathFinder, importlib.abc.ExecutionLoader):
    """Finds and executes the modules of one `Sources`: the first file is the package `root`, the others are in it."""

    def __init__(self, root: str, sources: Sources) -> None:
        self._root, self._sources = root, sources
        #: By the modules' dotted names. A folder without __init__.py is a package with an empty one.
        self._files = {"": sources.first}
        for name in sources.texts:
            self._files[name.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")] = name
            for parent in PurePosixPath(name).parents[:-1]:
                self._files.setdefault(".".join(parent.parts), f"{parent}/__init__.py")
        self._tops = {module.partition(".")[0] for module in self._files} - OTHERS
        #: What the code sees as Python's built-in functions: an import statement calls `__import__` of these.
        self._builtins = {**vars(builtins), "__import__": self._import}

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Where a module comes from; None if it is not below `root`. Raises ModuleNotFoundError."""
        root, _, module = fullname.partition(".")
        if root != self._root:
            return None
        if module not in self._files:
            known = "an import statement finds the modules that one of the files names, and no others"
            where = f"beside {self._sources.path}"
            raise ModuleNotFoundError(f"No module named {module!r} {where}: {known}", name=fullname)
        return importlib.util.spec_from_loader(fullname, self)

    def is_package(self, fullname: str) -> bool:
        """Whether other modules are in this one."""
        return fullname == self._root or self._file(fullname).endswith("/__init__.py")

    def get_filename(self, fullname: str) -> str:
        """The path of a module's file."""
        return str(self._sources.folder / self._file(fullname))

    def get_source(self, fullname: str) -> str:
        """The text of a module."""
        return self._sources.texts.get(self._file(fullname), "")

    def exec_module(self, module: ModuleType) -> None:
        """Execute the text in the module."""
        vars(module)["__builtins__"] = self._builtins
        if module.__name__ == self._root:  # modules beside the first file may import it, too
            sys.modules[f"{self._root}.{self._sources.path.stem}"] = module
        super().exec_module(module)

    def _file(self, fullname: str) -> str:
        return self._files[fullname.partition(".")[2]]

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
