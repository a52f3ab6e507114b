"""The files of a checkpoint: their manifest, their checksums, how they reach the disk, and the run's documents.

Every checkpoint holds the documents of the run, config.toml and corpus.json, that it was written with: a run resumes
with those, so that a crash cannot combine one configuration with the weights of another. The copies in the run folder
are for people and other programs. They are updated with the first checkpoint under a changed configuration, and each
holds a checksum that reveals truncated or edited files.
"""

import hashlib
import io
import json
import os
import stat
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from mpitrain.errors import BadInput, naming
from mpitrain.files import checksum, read_text, read_whole, write_durably
from mpitrain.flat import Layout

FORMAT = 1
MANIFEST, STATE = "manifest.json", "state.h5"
LARGEST_MANIFEST = 1 << 24  # bytes
NAMED = (".h5", ".toml", ".json")  # the ends of the names of files that a manifest must name
REPLACED = "~"  # ends the name of a checkpoint while another takes its place
CONFIG = "config.toml"
SEAL = "# xxh3 of what stands above: "


class Described(msgspec.Struct, frozen=True):
    """What a manifest says of a file."""

    bytes: int
    xxh3: str


class Manifest(msgspec.Struct, frozen=True):
    """The content of a manifest; `files` by their paths in the checkpoint."""

    format: int
    files: dict[str, Described]


class CarefulFile(io.FileIO):
    """A file for h5py to write to, which keeps an error in `fault` until `finish` raises it.

    If HDF5 itself saw the error of a full disk, it would leave objects that it cannot close and crash at exit.
    """

    fault: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all the data; after a fault, pretend to."""
        view = memoryview(data).cast("B")
        done = 0
        try:
            while done < len(view) and self.fault is None:
                done += super().write(view[done:]) or 0
        except OSError as error:
            self.fault = error
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Set the length."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.fault = self.fault or error
            return size or 0

    def finish(self) -> None:
        """Sync to the disk. Raises OSError for anything that went wrong since the file was opened."""
        if self.fault is not None:
            raise self.fault
        os.fsync(self.fileno())


def describe(layout: Layout) -> str:
    """A description of the layout that distinguishes the vectors of different networks."""
    return json.dumps([[p.name, list(p.shape)] for p in layout.parameters])


def write_manifest(folder: Path, documents: Iterable[str] = ()) -> None:
    """Write the manifest, with size and checksum of every piece and document in the folder, and sync it to the disk."""
    files = [*sorted(folder.glob("*.h5")), *(folder / name for name in documents)]
    manifest = Manifest(FORMAT, {str(path.relative_to(folder)): digest(path) for path in files})
    write_durably(folder / MANIFEST, json.dumps(msgspec.to_builtins(manifest), indent=1) + "\n")


def fault(folder: Path) -> str | None:
    """Why a checkpoint is torn; None if it is intact."""
    try:
        manifest = msgspec.json.decode(read_whole(folder / MANIFEST, LARGEST_MANIFEST), type=Manifest)
        if manifest.format != FORMAT:
            return f"format {manifest.format} is not {FORMAT}"
        for name in (STATE, *sorted(path.name for path in folder.iterdir())):
            if name not in manifest.files and name != MANIFEST and name.endswith(NAMED):
                return f"its manifest does not name {name}"
        for name, described in manifest.files.items():
            if _size(folder, name) != described.bytes or digest(folder / name) != described:
                return f"{name} does not match its checksum"
    except (OSError, ValueError, RecursionError) as error:
        return f"torn ({error})"
    return None


def _size(folder: Path, name: str) -> int:
    """The size of a file that a manifest names. Raises OSError unless it is a regular file in the checkpoint."""
    path = folder / name
    if name[:1] in ("", "/") or os.path.realpath(path.parent) != str(Path(os.path.realpath(folder), name).parent):
        raise OSError(f"{name!r} is not in the checkpoint")
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{name} is not a regular file")
    return found.st_size


def digest(path: Path) -> Described:
    """Length and xxh3 of a file."""
    with path.open("rb") as file:
        return Described(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, xxhash.xxh3_64).hexdigest())


def folders(folder: Path) -> list[Path]:
    """The checkpoints of a run, sorted by samples; one that is being replaced comes before its replacement."""
    with naming(folder), suppress(FileNotFoundError):
        return sorted((path for path in folder.iterdir() if path.name[0].isdigit() and path.is_dir()), key=order)
    return []


def order(path: Path) -> tuple[str, bool]:
    """Sort key: by samples, a replaced checkpoint before its replacement."""
    return path.name.rstrip(REPLACED), not path.name.endswith(REPLACED)


# ---- documents


def sealed(configuration: str) -> str:
    """The text of config.toml, with its checksum in a comment at its end."""
    return f"{configuration}{SEAL}{checksum(configuration)}\n"


def require_intact(run: Path, checkpoint: Path) -> None:
    """Raise BadInput naming the run's config.toml if it has been changed."""
    path = run / CONFIG
    if not _is_sealed(path):
        said = "does not match its checksum; what a resume is to change is given by --set"
        raise BadInput(f"{path}: {said}; {checkpoint / CONFIG} holds what the run had")


def require_replaceable(run: Path) -> None:
    """Raise BadInput if the folder has a config.toml that no run has written."""
    path = run / CONFIG
    if path.exists() and not _is_sealed(path):
        raise BadInput(f"{path}: not written by a run, which would replace it; take another folder")


def _is_sealed(path: Path) -> bool:
    with naming(path):
        text = read_text(path, errors="replace")
    return text == sealed(text.rpartition(SEAL)[0])


def maker(checkpoint: Path) -> str:
    """`algorithms.maker_of` the algorithm that wrote a checkpoint; "" if no document says it."""
    try:
        table = tomllib.loads(read_text(checkpoint / CONFIG))["algorithm"]
        return " ".join(filter(None, (table["name"], table.get("optimizer", {}).get("name", ""))))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
