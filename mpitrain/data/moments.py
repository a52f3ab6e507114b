"""Sums over shards from which the mean, standard deviation and covariance of a training part are computed."""

from collections.abc import Iterable

import numpy as np

from mpitrain.data.validation import Attributes, Value
from mpitrain.flat import Array

AT_A_TIME = 1 << 21  # values converted to float64 at a time
COLOURS = 4  # up to this many channels, all products are summed; more channels are features, of which only squares are
LEAST = 1e-8  # smallest variance


def moments(inputs: Array) -> dict[str, Value]:
    """For the channels of the last axis: the number of values, their sums, and sums of products or of squares.

    Keys are names of attributes. The sums are float64, which is exact for bytes.
    """
    channels = inputs.shape[-1]
    rows = inputs.reshape(-1, channels)
    colours = channels <= COLOURS and inputs.ndim == 4
    sums, products = np.zeros(channels), np.zeros((channels, channels) if colours else channels)
    step = max(AT_A_TIME // max(channels, 1), 1)
    for start in range(0, len(rows), step):
        wide = rows[start : start + step].astype(np.float64)
        sums += wide.sum(axis=0)
        products += wide.T @ wide if colours else np.einsum("ij,ij->j", wide, wide)
    return {"moments_count": len(rows), "moments_sum": sums, "moments_products": products}


NAMES = ("moments_count", "moments_sum", "moments_products")


def statistics(shards: Iterable[Attributes]) -> dict[str, Value]:
    """`mean` and `standard_deviation` float32 [channels] from the moments of all shards; for images also `covariance`
    [c, c]."""
    found = list(shards)
    count, sums, products = (np.sum([np.asarray(shard[name]) for shard in found], axis=0) for name in NAMES)
    mean = sums / count
    spread = products / count - (np.outer(mean, mean) if np.ndim(products) == 2 else mean * mean)
    variance = np.diag(spread) if np.ndim(products) == 2 else spread
    result = {
        "mean": mean.astype(np.float32),
        "standard_deviation": np.sqrt(np.maximum(variance, LEAST)).astype(np.float32),
    }
    return result | ({"covariance": spread.astype(np.float32)} if np.ndim(products) == 2 else {})
