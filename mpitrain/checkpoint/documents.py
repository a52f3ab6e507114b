"""The documents of a run, config.toml and corpus.json: every checkpoint holds those that it was written with.

A run resumes with the documents in its checkpoint, so that a crash cannot combine one configuration with the weights of
another. The copies in the run folder are for people and other programs. They are updated with the first checkpoint
under a changed configuration, and each holds a checksum that reveals truncated or edited files.
"""

import tomllib
from pathlib import Path

from mpitrain.errors import BadInput, naming
from mpitrain.files import checksum, read_text, write_durably

CONFIG = "config.toml"
SEAL = "# xxh3 of what stands above: "


def sealed(configuration: str) -> str:
    """The text of config.toml, with its checksum in a comment at its end."""
    return f"{configuration}{SEAL}{checksum(configuration)}\n"


def seal(run: Path) -> None:
    """Add the checksum to a config.toml of an older version, which had none."""
    path = run / CONFIG
    with naming(path):
        text = read_text(path)
        if SEAL not in text:
            write_durably(path, sealed(text))


def document(run: Path, checkpoint: Path, name: str) -> Path:
    """The document that applies to a checkpoint: its own, or the run's if an older version wrote the checkpoint."""
    own = checkpoint / name
    return own if own.exists() else run / name


def maker(checkpoint: Path) -> str:
    """`algorithms.maker_of` the algorithm that wrote a checkpoint; "" if no document says it."""
    try:
        text = read_text(document(checkpoint.parent.parent, checkpoint, CONFIG))
        table = tomllib.loads(text)["algorithm"]
        return " ".join(filter(None, (table["name"], table.get("optimizer", {}).get("name", ""))))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""


def require_intact(run: Path, checkpoint: Path) -> None:
    """Raise BadInput naming the run's config.toml if it has been changed. Older versions wrote no checksum."""
    path, copy = run / CONFIG, checkpoint / CONFIG
    with naming(path):
        text = read_text(path, errors="replace")
    written, seal, digest = text.rpartition(SEAL)
    if seal and digest.strip() == checksum(written):
        return
    if seal or copy.exists():
        left = f"; {copy} holds what the run had" if copy.exists() else ""
        raise BadInput(f"{path}: does not match its checksum; what a resume is to change is given by --set{left}")
