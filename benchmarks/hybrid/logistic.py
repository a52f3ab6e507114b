"""Whether `krizhevsky2014` with 1000 logistic outputs learns ten classes: the loss of 1000 steps of the recipe's rule.

python benchmarks/hybrid/logistic.py [--width 0.05] [--steps 1000]

Images of 67 x 67 are coarse patterns, one for each class, with noise, of the size of pixels up to 255 less their mean,
for which the initial values are made; minibatches of 32 at the recipe's rate for them,
0.01 · 32/128. Exit status 1 unless the mean loss of the last ten steps is below half the first. Without a hidden layer
that tells the classes apart, biases alone would reach 10·H(1/10) = 3.25 and what the absent classes add, up to 1.
"""

import argparse
import sys

import numpy as np

from mpitrain.data.batch import Batch
from mpitrain.models.build import build
from mpitrain.rng import stream
from mpitrain.rules.sgd import krizhevsky

CLASSES, PRESENT, SIDE, BATCH = 1000, 10, 67, 32


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=float, default=0.05)
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    losses = trained(options.width, options.steps)
    for step in range(0, options.steps, max(options.steps // 10, 1)):
        print(f"step {step:5d}  loss {np.mean(losses[step : step + 10]):.3f}")
    first, last = losses[0], float(np.mean(losses[-10:]))
    print(f"first {first:.3f}, largest {max(losses):.3f}, mean of the last ten {last:.3f}")
    return int(not last < first / 2)


def trained(width: float, steps: int) -> list[float]:
    """The loss of each step."""
    network, rng = build("krizhevsky2014", (SIDE, SIDE, 3), CLASSES, width=width), np.random.default_rng(0)
    patterns, present = rng.standard_normal((PRESENT, 4, 4, 3)), rng.choice(CLASSES, PRESENT, replace=False)
    theta = network.initial(1)
    velocity, gradient, scratch = np.zeros_like(theta), np.zeros_like(theta), np.empty_like(theta)
    eta, losses = 0.01 * BATCH / 128, []
    for step in range(steps):
        chosen = rng.integers(PRESENT, size=BATCH)
        coarse = np.repeat(np.repeat(patterns[chosen], 17, 1), 17, 2)[:, :SIDE, :SIDE]
        images = (54.0 * coarse + 27.0 * rng.standard_normal(coarse.shape)).astype(np.float32)
        batch = Batch(images, present[chosen].astype(np.int32))
        losses.append(float(network.loss_and_gradient(theta, gradient, batch, stream(1, "dropout", step))))
        for p in network.layout.parameters:
            part = network.layout.slices[p.name]
            own = {"eta": eta, "decay": 5e-4} if p.decay else {"eta": 2 * eta, "decay": 0.0}
            krizhevsky(theta[part], velocity[part], gradient[part], scratch[part], mu=0.9, **own)
    return losses


if __name__ == "__main__":
    sys.exit(main())
