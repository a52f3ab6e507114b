"""A file of the user's own and the modules beside it that it imports, read as text.

The modules are those that import statements name, also within functions, which may be called much later. Modules of a
Python installation are not the user's own, wherever it lies.
"""

import ast
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from mpitrain.errors import naming
from mpitrain.files import checksum, read_text

#: Modules that no file beside the user's stands in for.
OTHERS = {*sys.stdlib_module_names, __name__.partition(".")[0]}
#: Folders of installed modules, and files that mark the folder of a Python installation.
INSTALLED, MARKERS = {"site-packages", "dist-packages"}, ("pyvenv.cfg", "conda-meta")
LARGEST = 1 << 24  # bytes of a file


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
    """A file and what its import statements, and theirs, name in its folder. Raises BadInput naming a file."""
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
        return  # which is said when the file is executed
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
