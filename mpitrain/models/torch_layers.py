"""Networks of our own layers computed by PyTorch: `model.backend = "torch"`.

The flat vector is the same one, with the same names, shapes and initial weights, so that a run can be resumed, and its
network evaluated, by either. Between the layers, images are [n, c, h, w] in channels-last memory.
"""

from collections.abc import Mapping
from functools import singledispatch

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch.nn import functional

from mpitrain.flat import Array
from mpitrain.models.activations import Relu, Sigmoid
from mpitrain.models.convolution import Convolution
from mpitrain.models.dropout import Dropout
from mpitrain.models.fully_connected import FullyConnected
from mpitrain.models.layer import Layer
from mpitrain.models.network import Network
from mpitrain.models.normalisation import LocalResponseNorm
from mpitrain.models.pooling import MaxPool
from mpitrain.models.torch_module import TorchModel
from mpitrain.models.torch_place import HOST, CpuPlace


class TorchNetwork(TorchModel):
    """`network` computed by PyTorch in `place`, with `bf16` under autocast. PyTorch draws its dropout."""

    def __init__(self, network: Network, bf16: bool = False, place: CpuPlace = HOST) -> None:
        super().__init__(
            lambda seed: Layers(network),
            network.input_shape,
            network.classes,
            name=network.name,
            output=network.output,
            l2=network.l2,
            l2_biases=network.l2_biases,
            bf16=bf16,
            place=place,
        )
        self._network, self.layout = network, network.layout

    def initial(self, seed: int, dtype: DTypeLike = np.float32) -> Array:
        """The initial flat vector of the network, bit for bit."""
        return self._network.initial(seed, dtype)


class Layers(torch.nn.Module):
    """The layers one after another; the parameters have the names and shapes of the network's."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.layers = [(layer.name, layer) for layer in network.layers]
        for layer in network.layers:
            own = torch.nn.Module()
            for p in layer.parameters:
                own.register_parameter(p.name.rpartition(".")[2], torch.nn.Parameter(torch.zeros(p.shape)))
            if layer.parameters:
                self.add_module(layer.name, own)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs [n, classes]."""
        for name, layer in self.layers:
            own = dict(self.get_submodule(name).named_parameters()) if layer.parameters else {}
            x = apply(layer, x, own, self.training)
        return x


Own = Mapping[str, torch.Tensor]


@singledispatch
def apply(layer: Layer, x: torch.Tensor, own: Own, training: bool) -> torch.Tensor:
    """The layer's outputs; `own` are its parameters."""
    raise NotImplementedError(f"PyTorch has no layer {layer.name}")


@apply.register
def _(layer: FullyConnected, x: torch.Tensor, own: Own, training: bool) -> torch.Tensor:
    x = x.permute(0, 2, 3, 1) if x.ndim == 4 else x
    if layer.columns == 1:
        return torch.addmm(own["bias"], x.flatten(1), own["weights"])
    inputs, weights = (part.unflatten(1, (layer.columns, -1)) for part in (x.flatten(1), own["weights"]))
    return torch.einsum("nci,icu->ncu", inputs, weights).flatten(1) + own["bias"]


@apply.register
def _(layer: Convolution, x: torch.Tensor, own: Own, training: bool) -> torch.Tensor:
    filters = own["weights"].permute(3, 2, 0, 1)
    y = functional.conv2d(x, filters, own["bias"], layer.stride, layer.pad, groups=layer.groups)
    return y if layer.pool is None else apply(layer.pool, y, {}, training)


@apply.register
def _(layer: MaxPool, x: torch.Tensor, own: Own, training: bool) -> torch.Tensor:
    return functional.max_pool2d(x, layer.size, layer.stride)


@apply.register
def _(layer: LocalResponseNorm, x: torch.Tensor, own: Own, training: bool) -> torch.Tensor:
    size = 2 * layer.half + 1  # PyTorch divides alpha by this
    return functional.local_response_norm(x, size, layer.scale * size, layer.power, layer.offset)


@apply.register
def _(layer: Relu, x: torch.Tensor, own: Own, training: bool) -> torch.Tensor:
    return functional.relu(x)


@apply.register
def _(layer: Sigmoid, x: torch.Tensor, own: Own, training: bool) -> torch.Tensor:
    return torch.sigmoid(x)


@apply.register
def _(layer: Dropout, x: torch.Tensor, own: Own, training: bool) -> torch.Tensor:
    if training:
        x = functional.dropout(x, layer.rate)
    return x if layer.evaluated == 1 else x * layer.evaluated  # in training PyTorch has divided by it
