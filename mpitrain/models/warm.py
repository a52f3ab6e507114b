"""Compile all loops that a network uses."""

from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike

from mpitrain.flat import Array
from mpitrain.models.model import Model
from mpitrain.models.network import Network
from mpitrain.sampling.batch import Batch
from mpitrain.sampling.rng import stream

ToDevice = Callable[[Array], Array]


def warm(network: Model, dtype: DTypeLike = np.float32, to_device: ToDevice = lambda array: array) -> None:
    """Take a step on one example of zeros, so that every compiled loop of the network is in the cache on disk. A module
    of PyTorch's has none.

    `to_device` copies arrays to the network's device. Compiling takes seconds, loading from the cache tens of
    milliseconds: one rank of each node calls this before the others.
    """
    if not isinstance(network, Network):
        return
    parameters = to_device(np.zeros(network.layout.size, dtype))
    batch = Batch(to_device(np.zeros((1, *network.input_shape), dtype)), to_device(np.zeros(1, np.int32)))
    network.loss_and_gradient(parameters, np.empty_like(parameters), batch, stream(0, "dropout"))
