"""Environment variables that must be set before NumPy loads its BLAS."""

import os
import tempfile
from pathlib import Path


def prepare() -> None:
    """Choose OpenBLAS's kernels where its own choice is slower, and the folder of Numba's cache. Variables that the
    user has set are kept."""
    if _is_zen_4():
        # Zen 4 executes an AVX-512 instruction in two halves: the AVX2 kernels are 3 to 10 % quicker there
        # (benchmarks/compute).
        os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")
    beside = Path(__file__).parent.parent / "ops" / "__pycache__"
    own = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "numba")
    if not _writable(beside) and not _writable(own):
        os.environ.setdefault("NUMBA_CACHE_DIR", _own_folder())


def _writable(folder: Path) -> bool:
    """Whether files can be created in the folder, which is created first if necessary."""
    while not folder.exists():
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)


def _own_folder() -> str:
    """A temporary folder that belongs to this user alone, for when Numba can write neither to the package nor to the
    home folder."""
    folder = Path(tempfile.gettempdir()) / f"mpitrain-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        return tempfile.mkdtemp(prefix="mpitrain-")
    return str(folder)


def _is_zen_4() -> bool:
    """Whether this is AMD family 25 with AVX-512, which Zen 3 lacks."""
    try:
        facts = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
    except OSError:
        return False
    lines = dict(line.split(":", 1) for line in facts.splitlines() if ":" in line)
    known = {key.strip(): value.strip() for key, value in lines.items()}
    return known.get("vendor_id") == "AuthenticAMD" and known.get("cpu family") == "25" and "avx512f" in known["flags"]
