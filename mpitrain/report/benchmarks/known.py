"""The benchmarks by name: their configurations, errors to reach, and data.

The data are made from a pinned wheel, from Debian's fonts, and from espeak-ng's voices. What they were made of, and a
checksum of all shards, stand in `benchmark.json` beside them.
"""

import json
import platform
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from mpitrain.api.launching import last_words
from mpitrain.data.reader import digest_of
from mpitrain.errors import BadInput, naming
from mpitrain.files import Record, read_text, shipped, write_whole

FOLDER = Path("runs/benchmarks")  # of the data, unless data.path is given
TARGETS = {"bytes": "2.5", "glyphs": "0.3", "speech": "0.4"}  # reached by one worker after about half of its time
NAMES = tuple(TARGETS)
HERE = Path(__file__).parent
TOLD = "benchmark.json"
PROGRAM = (sys.executable, "-m", "mpitrain", "prepare")
WHEEL, VERSION = "sympy", "1.14.0"  # pure Python, 25 MB of it; PyTorch installs it
SYMBOLS = ("D050000L*", "StandardSymbolsPS*")  # fonts that draw symbols in place of letters


class Base(NamedTuple):
    """What all configurations of a comparison begin with: a TOML file, overrides, and an optimizer with its learning
    rate, for algorithms that take any optimizer, unless a configuration names another."""

    path: Path
    settings: tuple[str, ...]
    optimizer: str = ""
    rate: str = ""


def base_of(name: str, settings: list[str]) -> Base:
    """The configuration of a benchmark, on its own data unless `settings` have a data.path."""
    own = [] if _given(settings) else [f"data.path={(FOLDER / name).absolute()}"]
    if name != "bytes":
        return Base(HERE / f"{name}.toml", tuple(own))
    own.append(f"model.import={shipped('examples') / 'transformer' / 'transformer.py'}:build")
    return Base(HERE / "bytes.toml", tuple(own), "adamw", "4e-3")


def require_data(name: str, settings: list[str]) -> None:
    """Make a benchmark's data if they do not exist yet, unless `settings` have a data.path. Raises BadInput."""
    if not _given(settings):
        make(name, FOLDER / name)


def _given(settings: list[str]) -> bool:
    return any(setting.partition("=")[0].strip() == "data.path" for setting in settings)


# ---- the data


def make(name: str, folder: Path) -> None:
    """Make the data in `folder` unless it exists; print their checksum. Raises BadInput naming what is missing."""
    if not folder.exists():
        print(f"{name}: making the data in {folder}, once; this takes a minute or two", flush=True)
        with naming(folder):  # a new name, as elements of a job array may make them on several nodes at once
            folder.parent.mkdir(parents=True, exist_ok=True)
            making = TemporaryDirectory(prefix=".making-", dir=folder.parent, ignore_cleanup_errors=True)
        with making as scratch:
            new = Path(scratch) / folder.name
            versions = MAKERS[name](Path(scratch), new)
            told: Record = {"benchmark": name, "of": versions, "checksum": digest_of(new)}
            told |= {"python": platform.python_version(), **_versions("numpy")}
            write_whole(new / TOLD, json.dumps(told, indent=1) + "\n")
            with suppress(OSError):  # another process has made them meanwhile
                new.rename(folder)
    path = folder / TOLD
    with naming(path), naming(f"{path}: no record of a benchmark", ValueError, KeyError, TypeError):
        told = json.loads(read_text(path))
        print(f"{name}: data with the checksum {told['checksum']}; what they were made of stands in {path}", flush=True)


def _bytes(scratch: Path, folder: Path) -> Record:
    run([*PROGRAM, "text", "--ending", ".py", str(_wheel(scratch)), str(folder)])
    return {WHEEL: VERSION}


def _wheel(scratch: Path) -> Path:
    """The folder of the pinned wheel's modules: installed, or downloaded by pip."""
    with suppress(metadata.PackageNotFoundError):
        found = find_spec(WHEEL)
        if metadata.version(WHEEL) == VERSION and found is not None and found.origin:
            return Path(found.origin).parent
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    run([*pip, "--dest", str(scratch), f"{WHEEL}=={VERSION}"])
    (path,) = scratch.glob("*.whl")
    with naming(path, OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        archive.extractall(scratch)
    return scratch / WHEEL


def _glyphs(scratch: Path, folder: Path) -> Record:
    packages = (HERE / "fonts.txt").read_text().split()
    (scratch / "fonts").mkdir()
    hint = "; `apt-get update` brings the lists of packages up to date"
    run(["apt-get", "download", "-qq", *packages], scratch, hint)
    archives = sorted(scratch.glob("*.deb"))
    for path in archives:
        run(["dpkg-deb", "--extract", str(path), str(scratch / "fonts" / path.name.partition("_")[0])])
    for pattern in SYMBOLS:
        for path in scratch.rglob(pattern):
            path.unlink()
    run([*PROGRAM, "glyphs", str(scratch / "fonts"), str(folder)])
    return {"packages": [path.stem for path in archives], **_versions("Pillow")}


def _speech(scratch: Path, folder: Path) -> Record:
    run([*PROGRAM, "speech", str(folder), "--language", "en", "--hours", "3", "--classes", "200"])
    return _versions("espeakng-loader", "kaldi-native-fbank")


MAKERS: dict[str, Callable[[Path, Path], Record]] = {"bytes": _bytes, "glyphs": _glyphs, "speech": _speech}


def run(words: Sequence[str], folder: Path | None = None, hint: str = "") -> None:
    """Run a command in `folder` to its end. If it fails, raises BadInput with its last words and `hint`."""
    try:
        ended = subprocess.run(words, cwd=folder, stderr=subprocess.PIPE, check=False)
    except OSError as error:
        raise BadInput(f"{words[0]}: {error.strerror}; this benchmark's data are made with it") from None
    if ended.returncode:
        raise BadInput(f"{' '.join(words[:4])} …: {last_words(ended.stderr, ended.returncode)}{hint}")


def _versions(*names: str) -> Record:
    return {name: metadata.version(name) for name in names}
