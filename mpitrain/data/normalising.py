"""Mean and standard deviation of a corpus, by which features and pixels are normalised.

They are computed from sums over its shards, which are among their attributes.
"""

from collections.abc import Iterable

import numpy as np

from mpitrain.data.validation import GREATEST, Attributes, Value
from mpitrain.errors import BadInput
from mpitrain.flat import Array

ROUNDED = 1e-14  # of a mean's square: a variance up to this may be a constant's, by rounding of float32 and of sums
AT_A_TIME = 1 << 21  # values converted to float64 at a time
COLOURS = 4  # up to this many channels, all products are summed; more are features, whose squares alone are summed
NORMALISING = ("mean", "standard_deviation")
STATISTICS = (*NORMALISING, "covariance")
UNNORMALISED = "the shards have no mean and standard_deviation (docs/shards.md)"
MOMENTS = ("moments_count", "moments_sum", "moments_products")


def stored(attributes: Attributes, channels: int, dtype: np.dtype | type) -> tuple[Array, Array]:
    """Mean and 1 ÷ standard deviation of each channel as stored in a shard; 0 and 1 if there are none."""
    mean = np.broadcast_to(attributes.get("mean", 0.0), channels)
    std = np.broadcast_to(attributes.get("standard_deviation", 1.0), channels)
    return mean.astype(dtype), (1.0 / std.astype(np.float64)).astype(dtype)


def of_pixels(how: str, attributes: Attributes, channels: int, dtype: np.dtype | type) -> tuple[Array, Array]:
    """Mean and scale [channels] of images by `how`, data.normalise. Raises BadInput if that is for frames only."""
    if how in ("speaker", "utterance"):
        raise BadInput(f"data.normalise = {how}: images have none; corpus, mean, unit or none")
    if how == "corpus":
        return stored(attributes, channels, dtype)
    mean = stored(attributes, channels, dtype)[0] if how == "mean" else np.zeros(channels, dtype)
    return mean, np.full(channels, 1 / 255 if how == "unit" else 1.0, dtype)


def deviation(mean: Array, variance: Array) -> Array:
    """The standard deviation, 1 for a constant. It may be tiny otherwise, such as that of features in amperes."""
    return np.sqrt(np.where(variance > np.maximum(ROUNDED * mean * mean, GREATEST**-2), variance, 1.0))


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


def statistics(shards: Iterable[Attributes]) -> dict[str, Value]:
    """`mean` and `standard_deviation` float32 [channels] from the moments of all shards; for images also `covariance`
    [c, c]."""
    found = list(shards)
    count, sums, products = (np.sum([np.asarray(shard[name]) for shard in found], axis=0) for name in MOMENTS)
    mean, colours = sums / count, np.ndim(products) == 2
    spread = products / count - (np.outer(mean, mean) if colours else mean * mean)
    std = deviation(mean, np.diag(spread) if colours else spread)
    result = {"mean": mean.astype(np.float32), "standard_deviation": std.astype(np.float32)}
    return result | ({"covariance": spread.astype(np.float32)} if colours else {})
