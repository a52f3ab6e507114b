"""What must be set before NumPy loads its BLAS."""

import os
from pathlib import Path


def prepare() -> None:
    """Choose OpenBLAS's kernels where its own choice is the slower one; what the user has set stays."""
    if _is_zen_4():
        # Zen 4 executes an AVX-512 instruction in two halves: the AVX2 kernels are 3 to 10 % quicker there
        # (benchmarks/compute).
        os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")


def _is_zen_4() -> bool:
    """AMD family 25 with AVX-512, which Zen 3 has not."""
    try:
        facts = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
    except OSError:
        return False
    lines = dict(line.split(":", 1) for line in facts.splitlines() if ":" in line)
    known = {key.strip(): value.strip() for key, value in lines.items()}
    return known.get("vendor_id") == "AuthenticAMD" and known.get("cpu family") == "25" and "avx512f" in known["flags"]
