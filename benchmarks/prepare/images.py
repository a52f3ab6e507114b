"""How well `prepare images` uses two cores: the same pictures with --jobs 1 and 2, in turns.

    OPENBLAS_NUM_THREADS=1 python benchmarks/prepare/images.py [--pictures N] [--turns N]

Pictures are JPEG files of 500 x 375, which become 64 x 64. A turn is the whole command, its start included.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

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


def seconds(source: Path, out: Path, jobs: int) -> float:
    """One import."""
    words = ["prepare", "images", str(source), str(out), "--size", "64", "--jobs", str(jobs)]
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "mpitrain", *words], check=True, capture_output=True)
    taken = time.perf_counter() - began
    shutil.rmtree(out)
    return taken


def main() -> None:
    """Print each turn, the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=12_000)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    times: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        draw(Path(folder) / "in", options.pictures)
        for _ in range(options.turns):
            for jobs, taken in times.items():
                taken.append(seconds(Path(folder) / "in", Path(folder) / "out", jobs))
            print(f"{times[1][-1]:.1f} s with one process, {times[2][-1]:.1f} s with two", flush=True)
    one, two = (statistics.median(times[jobs]) for jobs in (1, 2))
    rate = options.pictures / two
    ratios = sorted(a / b for a, b in zip(times[1], times[2], strict=True))
    print(f"medians {one:.1f} s and {two:.1f} s, a ratio of {one / two:.2f}; {rate:,.0f} pictures a second")
    print(
        f"ratios of the turns: {', '.join(f'{ratio:.2f}' for ratio in ratios)}; median {statistics.median(ratios):.2f}"
    )


if __name__ == "__main__":
    main()
