"""How well `prepare images` uses two cores: the same pictures with --jobs 1 and 2, in turns.

    OPENBLAS_NUM_THREADS=1 python benchmarks/prepare/images.py [--pictures N] [--turns N]

Pictures are JPEG files of 500 x 375, which become 64 x 64.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from turns import compare

DIFFERENT = 100  # pictures that are drawn; the others are copies
CLASSES = 10


def draw(folder: Path, count: int) -> None:
    """Pictures of smooth noise, about 60 kB each."""
    rng = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"class{number % CLASSES}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number < DIFFERENT:
            small = Image.fromarray(rng.integers(0, 256, (94, 125, 3), np.uint8))
            small.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)
        else:
            first = number % DIFFERENT
            shutil.copy(folder / f"class{first % CLASSES}" / f"{first:06d}.jpg", path)


def main() -> None:
    """Print each turn, the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=12_000)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        draw(Path(folder) / "in", options.pictures)
        words = ["images", str(Path(folder) / "in"), "--size", "64"]
        taken = compare(words, Path(folder) / "out", options.turns)
    print(f"{options.pictures / taken:,.0f} pictures a second with two processes")


if __name__ == "__main__":
    main()
