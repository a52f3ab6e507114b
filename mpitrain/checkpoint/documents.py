"""The documents of a run, config.toml and corpus.json: every checkpoint holds those that it was written with.

A run resumes with the documents in its checkpoint, so that a crash cannot combine one configuration with the weights of
another. The copies in the run folder are for people and other programs. They are updated with the first checkpoint
under a changed configuration, and each holds a checksum that reveals truncated or edited files.
"""

import tomllib
from pathlib import Path

from mpitrain.errors import BadInput, naming
from mpitrain.files import checksum, read_text

CONFIG = "config.toml"
SEAL = "# xxh3 of what stands above: "


def sealed(configuration: str) -> str:
    """The text of config.toml, with its checksum in a comment at its end."""
    return f"{configuration}{SEAL}{checksum(configuration)}\n"


def require_intact(run: Path, checkpoint: Path) -> None:
    """Raise BadInput naming the run's config.toml if it has been changed."""
    path = run / CONFIG
    with naming(path):
        text = read_text(path, errors="replace")
    if text != sealed(text.rpartition(SEAL)[0]):
        said = "does not match its checksum; what a resume is to change is given by --set"
        raise BadInput(f"{path}: {said}; {checkpoint / CONFIG} holds what the run had")


def maker(checkpoint: Path) -> str:
    """`algorithms.maker_of` the algorithm that wrote a checkpoint; "" if no document says it."""
    try:
        table = tomllib.loads(read_text(checkpoint / CONFIG))["algorithm"]
        return " ".join(filter(None, (table["name"], table.get("optimizer", {}).get("name", ""))))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
