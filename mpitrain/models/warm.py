"""Compile before the others do."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mpitrain.data.batch import Batch
from mpitrain.flat import Array
from mpitrain.models.network import Network
from mpitrain.rng import stream

Place = Callable[[Array], Array]


def warm(network: Network, dtype: Any = np.float32, place: Place = lambda array: array) -> None:
    """One step on one example of zeros, so that every compiled loop the network uses lies in the on-disk cache.

    `place` puts arrays on the network's device. Compiling takes seconds, loading from the cache tens of milliseconds:
    one rank of a node calls this before the rest.
    """
    parameters = place(network.initial(0, dtype))
    batch = Batch(place(np.zeros((1, *network.input_shape), dtype)), place(np.zeros(1, np.int32)))
    network.loss_and_gradient(parameters, np.empty_like(parameters), batch, stream(0, "dropout"))
