"""Bits a byte of held-out text by xz and by an interpolated n-gram, beside a network of `compare --on bytes`.

    python benchmarks/text/models.py runs/benchmarks/bytes [--order 5]

xz, at `xz -9e`: what the test part adds to the compressed training part. n-gram: counted once on the training part,
with Witten and Bell's weights (The zero-frequency problem, IEEE Transactions on Information Theory 37, 1991, method C):

    P(c | h) = (n(h c) + t(h) P(c | h')) / (n(h) + t(h)),    P(c | no context at all) = 1/256

where h are the preceding bytes, h' all of them but the first, and t(h) of 256 bytes have followed h. A part is one
stream to both, as to the network; xz also learns from the test part.
"""

import argparse
import lzma
import time
from pathlib import Path

import numpy as np

from mpitrain.data.reader import ShardFile


def read(folder: Path, part: str) -> np.ndarray:
    """The bytes of a part, one shard after the other."""
    paths = sorted(folder.glob(f"{part}-*.h5"))
    if not paths:
        raise SystemExit(f"{folder}: no part {part}; compare --on bytes makes the data")
    found = []
    for path in paths:
        with ShardFile(path) as file:
            found.append(file.read_inputs())
    return np.concatenate(found).astype(np.uint8)


def grams(text: np.ndarray, order: int) -> np.ndarray:
    """Of each byte from number `order` on, a number with it and the order − 1 bytes before it in base 256."""
    codes = np.zeros(len(text) - order + 1, np.int64)
    for place in range(order):
        codes = codes << 8 | text[place : place + len(codes)]
    return codes


def among(wanted: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The values at the wanted ones of the sorted keys; 0 where there is no such key."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)


def probabilities(train: np.ndarray, test: np.ndarray, order: int) -> np.ndarray:
    """P of each byte of `test`."""
    p = np.full(len(test), 1 / 256)
    for n in range(1, order + 1):
        keys, counts = np.unique(grams(train, n), return_counts=True)
        contexts, first, followers = np.unique(keys >> 8, return_index=True, return_counts=True)
        wanted = grams(test, n)
        seen = among(wanted >> 8, contexts, np.add.reduceat(counts, first))
        novel = among(wanted >> 8, contexts, followers)
        own = p[n - 1 :]
        mixed = (among(wanted, keys, counts) + novel * own) / np.maximum(seen + novel, 1)
        p[n - 1 :] = np.where(seen > 0, mixed, own)
    return p


def compressed(text: np.ndarray) -> int:
    """Bytes of a file of `xz -9e`."""
    return len(lzma.compress(text.tobytes(), preset=9 | lzma.PRESET_EXTREME))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="shards of bytes with the parts train and test")
    parser.add_argument("--order", type=int, default=5, help="bytes of the longest gram, 1 to 7; default: 5")
    options = parser.parse_args()
    if not 1 <= options.order <= 7:
        parser.error(f"--order: from 1 to 7, not {options.order}")
    train, test = read(options.folder, "train"), read(options.folder, "test")
    print(f"train {len(train):,} bytes, test {len(test):,}; seconds of processor time, of the n-grams together")
    start = time.process_time()
    for order in range(1, options.order + 1):
        bits = -np.log2(probabilities(train, test, order)).mean()
        print(f"{order}-gram  {bits:.4f} bits a byte  {time.process_time() - start:.1f} s", flush=True)
    start = time.process_time()
    added = compressed(np.concatenate([train, test])) - compressed(train)
    print(f"xz -9e  {8 * added / len(test):.4f} bits a byte  {time.process_time() - start:.1f} s")


if __name__ == "__main__":
    main()
