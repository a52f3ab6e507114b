"""The handwritten digits: 1797 scans of 8 x 8 pixels in 17 shades, embedded as two shards beside this module.

They are the test part of the UCI collection (E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits, 1998,
https://doi.org/10.24432/C50P49, CC BY 4.0), in its order; every fifth scan is held out. The scans of each of the 13
writers follow one another, so train and test share writers: a new writer's digits are harder.
"""

from pathlib import Path

import numpy as np

from mpitrain.data.reader import read_shard
from mpitrain.data.shards import folder_parts, write_shard
from mpitrain.flat import Array

SOURCE = "UCI Optical Recognition of Handwritten Digits, Alpaydin and Kaynak 1998, https://doi.org/10.24432/C50P49"
LICENCE = "CC BY 4.0"
HELD_OUT = 5  # every fifth scan is held out


def embedded() -> Path:
    """The folder of the embedded shards."""
    return Path(__file__).parent


def prepare_digits(folder: Path) -> None:
    """Write the digits into `folder`: 1438 scans for training, 359 for testing. Raises BadInput naming a file."""
    for paths in folder_parts(embedded()).values():
        for path in paths:
            shard = read_shard(path)
            write_shard(folder / path.name, shard.kind, shard.arrays, shard.attributes)


def split(scans: Array, labels: Array, folder: Path) -> None:
    """Write scans [n, 64] of shades 0 to 16 and their labels [n], in the collection's order, as the two shards."""
    images = scans.reshape(-1, 8, 8, 1).astype(np.uint8)
    held_out = np.arange(len(images)) % HELD_OUT == HELD_OUT - 1
    pixels = images[~held_out].astype(np.float64)
    attributes = {
        "classes": 10,
        "mean": np.array([pixels.mean()], np.float32),
        "standard_deviation": np.array([pixels.std()], np.float32),
        "source": SOURCE,
        "licence": LICENCE,
    }
    for part, rows in (("train", ~held_out), ("test", held_out)):
        arrays = {"images": images[rows], "targets": labels[rows].astype(np.int32)}
        write_shard(folder / f"{part}-00000-of-00001.h5", "images", arrays, attributes)
