"""Networks of our own layers computed by PyTorch: `model.backend = "torch"`.

The flat vector is the same one, with the same names, shapes and initial weights, so that a run can be resumed, and its
network evaluated, by either. Between the layers, images are [n, c, h, w] in channels-last memory.
"""

import numpy as np
import torch
from numpy.typing import DTypeLike

from mpitrain.flat import Array
from mpitrain.models.network import Network
from mpitrain.models.torch.module import TorchModel
from mpitrain.models.torch.place import HOST, CpuPlace


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
        self._network, self.layout, self.drawing = network, network.layout, network.drawing

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
            x = layer.torch(torch, x, own, self.training)
        return x
