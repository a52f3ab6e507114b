"""Layers: each is a file with its options, and what it computes."""

from typing import TYPE_CHECKING, Union

from mpitrain.keys import tagged
from mpitrain.models.layer import LayerOptions

#: Options by the value of `kind`, in the order of their modules.
LAYERS = tagged(
    LayerOptions,
    "mpitrain.models.layers",
    "convolution",
    "max_pool",
    "local_response_norm",
    "group_norm",
    "relu",
    "sigmoid",
    "dropout",
    "fully_connected",
)

if TYPE_CHECKING:
    AnyLayer = LayerOptions
else:
    AnyLayer = Union[tuple(LAYERS.values())]  # noqa: UP007 (of a list, for msgspec)
