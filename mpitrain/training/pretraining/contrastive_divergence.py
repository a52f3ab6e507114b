"""Unsupervised pre-training as restricted Boltzmann machines, one on top of the other (the networks of Zhang 2013;
Hinton, Osindero & Teh 2006).

The first machine's visible units are Gaussian, for real-valued inputs of about unit variance; the others' are the
sigmoid units below. A machine starts from small weights of its own: the network's are so large that its hidden units
are saturated, which suits back-propagation and leaves a machine nothing to learn. The output layer is not changed.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from mpitrain.batch import Samples
from mpitrain.config import Pretraining
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.errors import TrainingFailed
from mpitrain.flat import Array
from mpitrain.models.activations import Sigmoid
from mpitrain.models.fully_connected import FullyConnected
from mpitrain.models.layer import Layer
from mpitrain.models.network import Network
from mpitrain.rng import stream
from mpitrain.start import DEADLINE
from mpitrain.training.pretraining import machine as rule
from mpitrain.training.pretraining.steps import PretrainingStep, depth, hidden_layers, learner_of, minibatches

#: Factor of the learning rate for the machine with Gaussian units, which would diverge at that of the others (Hinton's
#: guide, §13.2).
GAUSSIAN_RATE = 0.1
#: Standard deviation of a machine's initial weights, whose biases start at 0 (Hinton's guide, §8).
INITIAL = 0.01


def fits(network: Network) -> str:
    """Why this method cannot pre-train the network; "" if it can."""
    hidden = [layer for layer in network.layers if layer.parameters][:-1]
    follows = {id(layer): after for layer, after in pairwise(network.layers)}
    if all(_is_machine(layer) and isinstance(follows[id(layer)], Sigmoid) for layer in hidden):
        return "" if hidden else "has no hidden layer"
    return "has hidden layers that are not fully connected sigmoid ones"


def _is_machine(layer: Layer) -> bool:
    return isinstance(layer, FullyConnected) and layer.columns == 1


def steps(
    network: Network,
    corpus: Samples,
    theta: Array,
    options: Pretraining,
    seed: int,
    device: Cpu = CPU,
    deadline: float = DEADLINE,
) -> Iterator[PretrainingStep]:
    """Pre-train the initial parameters `theta`, on the device and in place, one minibatch per step; the loss is the
    squared error of the reconstruction.

    Raises TrainingFailed if the loss is no longer finite.
    """
    views, layers = network.layout.views(theta), depth(network)
    for layer in range(1, layers + 1):
        weights, hidden = views[f"fc{layer}.weights"], views[f"fc{layer}.bias"]
        start = INITIAL * stream(seed, "machine", layer).standard_normal(weights.shape)
        weights[:], hidden[:] = device.to_device(start.astype(theta.dtype)), 0
        machine = rule.Machine(weights, hidden, np.zeros_like(weights[:, 0]))
        below = _Below(network, views, layer - 1)
        learner = learner_of(network, corpus, seed, layer, theta.dtype, device, deadline)
        for number, work in enumerate(minibatches(options, corpus.samples)):
            visible = below(learner.load(work).inputs)
            draws = stream(seed, "hidden units", layer, number).random((len(visible), hidden.size), np.float32)
            uniform = device.to_device(draws)
            eta = options.learning_rate * (GAUSSIAN_RATE if layer == 1 else 1.0)
            loss = rule.step(machine, visible, uniform, eta=eta, gaussian=layer == 1)
            if not np.isfinite(loss):
                raise TrainingFailed("the pre-training diverged; a smaller pretraining.learning_rate may help")
            yield PretrainingStep(layer, layers, work.count, loss)
        learner.loader.close()


class _Below:
    """The outputs of the layers below a machine."""

    def __init__(self, network: Network, views: dict[str, Array], count: int) -> None:
        self._layers, self._views = hidden_layers(network, count) if count else [], views

    def __call__(self, inputs: Array) -> Array:
        x = inputs.reshape(len(inputs), -1)
        for layer in self._layers:
            x = layer.forward(self._views, x, training=False)
        return x
