"""Many ranks in one process, in virtual time: MPI's calls, and the program's own protocols over them."""

from pathlib import Path

from mpitrain.errors import BadInput

PAPERS = Path(__file__).parent / "clusters"


def names() -> list[str]:
    """Those that may be given in place of a file."""
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
