"""How well `prepare speech` uses two cores: the same speech with --jobs 1 and 2, in turns.

OPENBLAS_NUM_THREADS=1 python benchmarks/prepare/speech.py [--hours H] [--turns N]
"""

import argparse
import tempfile
from pathlib import Path

from turns import compare


def main() -> None:
    """Print each turn, the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", default="1")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(["speech", "--hours", options.hours], Path(folder) / "out", options.turns)


if __name__ == "__main__":
    main()
