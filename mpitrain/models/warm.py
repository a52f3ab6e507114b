"""Compile before the others do."""

from typing import Any

import numpy as np

from mpitrain.data.batch import Batch
from mpitrain.models.network import Network


def warm(network: Network, dtype: Any = np.float32) -> None:
    """One step on one example of zeros, so that every compiled loop the network uses lies in the on-disk cache.

    Compiling takes seconds, loading from the cache tens of milliseconds: one rank of a node calls this before the rest.
    """
    parameters = network.initial(0, dtype)
    inputs = np.zeros((1, *network.input_shape), dtype)
    batch = Batch(inputs, np.zeros(1, np.int32))
    network.loss_and_gradient(parameters, np.empty_like(parameters), batch, np.random.default_rng(0))
