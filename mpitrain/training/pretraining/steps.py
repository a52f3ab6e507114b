"""The parts that both methods of pre-training share: shallower networks, minibatches and progress.

A shallower network consists of the first layers of the network, with or without an output layer of its own.
"""

import copy
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mpitrain.batch import Samples
from mpitrain.config import Pretraining
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.models.layer import Layer
from mpitrain.models.model import Model
from mpitrain.models.network import Network
from mpitrain.rng import stream
from mpitrain.sampling.queue import Queue, Work
from mpitrain.start import DEADLINE
from mpitrain.training.gradients import Learner


class PretrainingStep(NamedTuple):
    """A completed minibatch in pre-training hidden layer `layer` (from 1) of `layers`, with its mean loss."""

    layer: int
    layers: int
    samples: int
    loss: float


def learner_of(
    network: Model,
    corpus: Samples,
    seed: int,
    layer: int,
    dtype: np.dtype,
    device: Cpu = CPU,
    deadline: float = DEADLINE,
) -> Learner:
    """A learner whose order of minibatches is specific to the layer."""
    own = int(stream(seed, "pretraining", layer).integers(2**31))
    return Learner(network, corpus, seed=own, dtype=str(dtype), device=device, deadline=deadline)


def minibatches(options: Pretraining, samples: int) -> Iterator[Work]:
    """The minibatches of `options.epochs` epochs."""
    queue = Queue(samples, round(options.epochs * samples))
    while (work := queue.next(options.minibatch)) is not None:
        yield work


def depth(network: Network) -> int:
    """Number of hidden layers with parameters."""
    return len(_starts(network)) - 1


def hidden_layers(network: Network, count: int) -> list[Layer]:
    """Copies of the layers up to the `count`-th hidden one with parameters, and of those before the next one."""
    return [_copy(layer) for layer in network.layers[: _starts(network)[count]]]


def kept(network: Network, count: int) -> slice:
    """The slice of the parameters of the first `count` hidden layers, in the network and in all its shallower ones."""
    return slice(0, network.slices[_starts(network)[count]].start)


def grown(network: Network, count: int) -> Network:
    """The first `count` hidden layers with an output layer; for all of them, a copy of the network."""
    layers = [*hidden_layers(network, count), _copy(network.layers[_starts(network)[-1]])]
    return Network(
        layers,
        network.input_shape,
        copy.deepcopy(network.loss),
        l2=network.l2,
        l2_biases=network.l2_biases,
        workspace=network.workspace.another(),
    )


def _copy(layer: Layer) -> Layer:
    """A copy without the workspace, which the network that uses the layer replaces."""
    return copy.deepcopy(layer, {id(layer.workspace): layer.workspace})


def _starts(network: Network) -> list[int]:
    """The indices of the layers with parameters; the last one is the output layer."""
    return [place for place, layer in enumerate(network.layers) if layer.parameters]
