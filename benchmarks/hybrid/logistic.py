"""Whether `krizhevsky2014` with 1000 logistic outputs learns: the loss of each step of the recipe's rule.

    python benchmarks/hybrid/logistic.py [--width 0.05] [--steps 1000] [--side 67] [--present 10] [--minibatch 32]
    python benchmarks/hybrid/logistic.py --width 1 --steps 10 --side 224 --present 20 --minibatch 128

Images are coarse patterns, one for each class that is present, with noise, of the size of pixels up to 255 less their
mean, for which the initial values are made; the rate is the recipe's for the minibatch, 0.01 for 128. Exit status 1
unless the mean loss of the last ten steps is below half the first. Without a hidden layer that tells the classes apart,
biases alone would reach 10·H(1/10) = 3.25 with ten classes, and what the absent ones add, up to 1.
"""

import argparse
import sys

import numpy as np

from mpitrain.algorithms.optimizers.sgd import krizhevsky
from mpitrain.models.model import Draws
from mpitrain.models.network import build
from mpitrain.sampling.batch import Batch
from mpitrain.sampling.rng import stream

CLASSES = 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=float, default=0.05)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--side", type=int, default=67)
    parser.add_argument("--present", type=int, default=10)
    parser.add_argument("--minibatch", type=int, default=32)
    options = parser.parse_args()
    losses = trained(options.width, options.steps, options.side, options.present, options.minibatch)
    stride = max(options.steps // 10, 1)
    for step in range(0, options.steps, stride):
        print(f"step {step:5d}  loss {np.mean(losses[step : step + min(stride, 10)]):.3f}")
    first, last = losses[0], float(np.mean(losses[-min(stride, 10) :]))
    print(f"first {first:.3f}, largest {max(losses):.3f}, at the end {last:.3f}")
    return int(not last < first / 2)


def trained(width: float, steps: int, side: int, present: int, minibatch: int) -> list[float]:
    """The loss of each step."""
    network, rng = build("krizhevsky2014", (side, side, 3), CLASSES, width=width), np.random.default_rng(0)
    patterns, targets = rng.standard_normal((present, 4, 4, 3)), rng.choice(CLASSES, present, replace=False)
    theta = network.initial(1)
    velocity, gradient, scratch = np.zeros_like(theta), np.zeros_like(theta), np.empty_like(theta)
    eta, cell, losses = 0.01 * minibatch / 128, -(-side // 4), list[float]()
    for step in range(steps):
        chosen = rng.integers(present, size=minibatch)
        coarse = np.repeat(np.repeat(patterns[chosen], cell, 1), cell, 2)[:, :side, :side]
        images = (54.0 * coarse + 27.0 * rng.standard_normal(coarse.shape)).astype(np.float32)
        batch = Batch(images, targets[chosen].astype(np.int32))
        losses.append(float(network.loss_and_gradient(theta, gradient, batch, Draws(stream(1, "dropout", step)))))
        for p in network.layout.parameters:
            part = network.layout.slices[p.name]
            own = {"eta": eta, "decay": 5e-4} if p.decay else {"eta": 2 * eta, "decay": 0.0}
            krizhevsky(theta[part], velocity[part], gradient[part], scratch[part], mu=0.9, **own)
    return losses


if __name__ == "__main__":
    sys.exit(main())
