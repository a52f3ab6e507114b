"""The documents of a run, config.toml and corpus.json: every checkpoint holds those that it was made with.

A run goes on with what its checkpoint says, so that no crash leaves a configuration beside another one's weights. The
copies in the run folder are for people and other programs. They change with the first checkpoint that a changed
configuration has come to, and each holds its own checksum, by which one is noticed that was cut short or edited.
"""

import tomllib
from pathlib import Path

import xxhash

from mpitrain.errors import BadInput
from mpitrain.files import write_durably

CONFIG = "config.toml"
SEAL = "# xxh3 of what stands above: "


def sealed(configuration: str) -> str:
    """The text of config.toml, with its checksum in a comment at its end."""
    return f"{configuration}{SEAL}{checksum(configuration)}\n"


def seal(run: Path) -> None:
    """Give an older version's config.toml its checksum, or one that a later checkpoint replaced could pass for torn."""
    path = run / CONFIG
    try:
        text = path.read_text(encoding="utf-8")
        if SEAL not in text:
            write_durably(path, sealed(text))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error


def checksum(text: str) -> str:
    """xxh3 of a text."""
    return xxhash.xxh3_64_hexdigest(text.encode())


def document(run: Path, checkpoint: Path, name: str) -> Path:
    """The document that holds for a checkpoint: its own, or the run's, where an older version wrote the checkpoint."""
    own = checkpoint / name
    return own if own.exists() else run / name


def maker(checkpoint: Path) -> str:
    """The name of the algorithm that made a checkpoint; "" where no document tells."""
    try:
        text = document(checkpoint.parent.parent, checkpoint, CONFIG).read_text(encoding="utf-8")
        return str(tomllib.loads(text)["algorithm"]["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def require_intact(run: Path, checkpoint: Path) -> None:
    """Raise BadInput naming the run's config.toml if it is not as it was written. Older versions wrote no checksum."""
    path, copy = run / CONFIG, checkpoint / CONFIG
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    written, seal, digest = text.rpartition(SEAL)
    if seal and digest.strip() == checksum(written):
        return
    if seal or copy.exists():
        left = f"; {copy} holds what the run had" if copy.exists() else ""
        raise BadInput(f"{path}: does not match its checksum; what a resume is to change is given by --set{left}")
