"""How many elements of a minibatch's gradient are exactly zero, and why? (Chan & Lane 2014, §3.4: "around 30%")

    python -m mpitrain prepare speech BN --language bn --hours 0.5 --classes 200 --bins 23
    OPENBLAS_NUM_THREADS=1 python benchmarks/papers/staleness/zeros.py BN [--preset chan2014-cnn]
        [--width 0.25] [--epochs 6]

One rank trains by momentum; after each epoch but the first, and before it, come gradients of minibatches of 256 that it
does not use. Their frames are drawn from all, as in training, or are neighbours; dropout draws for each example, as in
training, or once for the minibatch, as §3.3 may be read.
"""

import argparse
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from launch import table

from mpitrain.data.corpus import Corpus
from mpitrain.flat import Array
from mpitrain.models.layers.dropout import ROWS
from mpitrain.models.model import Draws
from mpitrain.models.network import Network, build
from mpitrain.sampling.batch import Batch

MINIBATCH, MU, TIMES = 256, 0.9, 8  # TIMES: gradients of a mean


class Once:
    """Draws one row for each minibatch, which `dropout` asks for in blocks of ROWS."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng, self._calls = rng, 0

    def random(self, dtype: Any, out: Array) -> Array:
        """As the generator's."""
        if self._calls % (MINIBATCH // ROWS) == 0:
            self._row = self._rng.random(out.shape[1:], dtype)
        self._calls += 1
        out[...] = self._row
        return out


def zeros(network: Network, gradient: Array, part: slice) -> float:
    """The share of zeros in layers `part` that have parameters."""
    pieces = [gradient[each] for each in [each for each in network.slices if each.stop > each.start][part]]
    return sum(np.count_nonzero(piece == 0) for piece in pieces) / sum(piece.size for piece in pieces)


def shares(network: Network, theta: Array, corpus: Corpus, near: bool, once: bool) -> tuple[list[float], float]:
    """Of all parameters, of the convolutions, of the fully connected layers but the output's, of the output. Then the
    cosine between two minibatches' gradients."""
    rng, gradient, found = np.random.default_rng(5), np.empty_like(theta), list[list[float]]()
    before, cosines = np.zeros_like(theta), list[float]()
    batch = Batch(np.empty((MINIBATCH, *corpus.shape), np.float32), np.empty(MINIBATCH, np.int32))
    convolutions = sum(each.stop > each.start for each in network.slices[: network.split])
    for _ in range(TIMES):
        start = int(rng.integers(corpus.samples - MINIBATCH))
        which = np.arange(start, start + MINIBATCH) if near else rng.integers(corpus.samples, size=MINIBATCH)
        draws: Any = Once(rng) if once else rng
        network.loss_and_gradient(theta, gradient, corpus.gather(which, batch), Draws(draws))
        parts = [slice(None), slice(0, convolutions), slice(convolutions, -1), slice(-1, None)]
        if found:
            cosines.append(float(gradient @ before / np.linalg.norm(gradient) / np.linalg.norm(before)))
        before[:] = gradient
        found.append([zeros(network, gradient, part) for part in parts])
    return [fmean(each) for each in zip(*found, strict=True)], fmean(cosines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--preset", default="chan2014-cnn")
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    corpus = Corpus(options.corpus, "train", context=[11])
    network = build(options.preset, corpus.shape, corpus.classes, width=options.width)
    rng, theta = np.random.default_rng(1), network.initial(1)
    velocity, gradient = np.zeros_like(theta), np.empty_like(theta)
    batch = Batch(np.empty((MINIBATCH, *corpus.shape), np.float32), np.empty(MINIBATCH, np.int32))
    rows, steps = [], corpus.samples // MINIBATCH
    for epoch in range(options.epochs + 1):
        losses = []
        if epoch:
            for which in rng.permutation(corpus.samples)[: steps * MINIBATCH].reshape(steps, MINIBATCH):
                losses.append(network.loss_and_gradient(theta, gradient, corpus.gather(which, batch), Draws(rng)))
                velocity *= MU
                velocity -= options.rate * gradient
                theta += velocity
        row: list[Any] = [epoch, f"{fmean(losses):.3f}" if losses else "–"]
        for near, once in ((False, False), (True, False), (False, True)):
            found, cosine = shares(network, theta, corpus, near, once)
            row += [f"{found[0]:.0%} (" + ", ".join(f"{each:.0%}" for each in found[1:]) + ")", f"{cosine:.2f}"]
        rows.append(row)
        print(*row, file=sys.stderr, flush=True)
    ways = ("all frames, own masks", "neighbours, own masks", "all frames, one mask")
    print(table(["epochs", "loss", *(each for way in ways for each in (way, "cosine"))], rows))


if __name__ == "__main__":
    main()
