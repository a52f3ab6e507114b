"""A corpus of synthetic images for Table 1: 100 classes of coloured patterns, 36 x 36 pixels.

    python benchmarks/hybrid/synthetic.py FOLDER [--train 8000] [--test 2000]

Each class is a fixed pattern of 6 x 6 coarse cells. An image shows the pattern of its class, shifted by up to one cell
and with a random contrast. Added to it are a random pattern that belongs to no class, and noise on each pixel.
"""

import argparse
from pathlib import Path

import numpy as np

from mpitrain.data.writer import ShardWriter

CLASSES, CELLS, SIDE = 100, 6, 36
CELL = SIDE // CELLS
CLUTTER, NOISE = 0.8, 0.5  # standard deviations beside the pattern's 1


def smooth(coarse: np.ndarray) -> np.ndarray:
    """Patterns [n, c + 1, c + 1, 3] at SIDE + CELL pixels a side, linear between the cells' corners."""
    at = np.arange(SIDE + CELL) / CELL
    low = np.minimum(at.astype(int), coarse.shape[1] - 2)
    high = (at - low).astype(np.float32)
    rows = coarse[:, low] * (1 - high)[:, None, None] + coarse[:, low + 1] * high[:, None, None]
    return rows[:, :, low] * (1 - high)[:, None] + rows[:, :, low + 1] * high[:, None]


def images(rng: np.random.Generator, patterns: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """One image of each target's class, uint8 [n, SIDE, SIDE, 3]."""
    n = len(targets)
    clutter = smooth(rng.standard_normal((n, CELLS + 2, CELLS + 2, 3), dtype=np.float32))[:, :SIDE, :SIDE]
    shown = np.empty((n, SIDE, SIDE, 3), np.float32)
    for image, (target, (y, x)) in enumerate(zip(targets, rng.integers(CELL, size=(n, 2)), strict=True)):
        shown[image] = patterns[target, y : y + SIDE, x : x + SIDE]
    shown *= rng.uniform(0.5, 1.5, (n, 1, 1, 1)).astype(np.float32)
    shown += CLUTTER * clutter + NOISE * rng.standard_normal(shown.shape, dtype=np.float32)
    return np.clip(127.5 + 40 * shown, 0, 255).astype(np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=8000)
    parser.add_argument("--test", type=int, default=2000)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    patterns = smooth(rng.standard_normal((CLASSES, CELLS + 2, CELLS + 2, 3), dtype=np.float32))
    described = {"classes": CLASSES, "source": "synthetic patterns", "mean": np.full(3, 127.5)}
    described["standard_deviation"] = np.full(3, 40 * (1 + CLUTTER**2 / 2 + NOISE**2) ** 0.5)
    for part, count in (("train", options.train), ("test", options.test)):
        writer = ShardWriter(options.folder, part, "images", described)
        for start in range(0, count, 500):
            targets = np.arange(start, min(start + 500, count), dtype=np.int32) % CLASSES
            writer.add(images(rng, patterns, targets), targets)
        writer.finish()


if __name__ == "__main__":
    main()
