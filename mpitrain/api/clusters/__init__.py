"""The clusters of the five papers, by name: each line of a file says where in its paper it stands, or is assumed."""

from pathlib import Path

from mpitrain.errors import BadInput

PAPERS = Path(__file__).parent


def names() -> list[str]:
    """The names of clusters that may be given in place of a file."""
    return sorted(path.stem for path in PAPERS.glob("*.toml"))


def find(word: str, option: str = "--cluster") -> Path:
    """The file of a name, or the one at a path. Raises BadInput naming the option for a word that is neither a name nor
    like a path."""
    if word in names():
        return PAPERS / f"{word}.toml"
    path = Path(word)
    if "/" not in word and not path.suffix and not path.exists():
        raise BadInput(f"{option} {word}: neither a file nor one of {', '.join(names())}")
    return path
