"""Group normalisation (Wu & He 2018)."""

from collections.abc import Mapping
from types import ModuleType

import numpy as np

from mpitrain.flat import Array, Parameter
from mpitrain.keys import Count, Positive
from mpitrain.models.layer import DoesNotFit, Draws, Layer, LayerOptions, OnnxNode, Shape, Tensor, Views, with_gradient
from mpitrain.models.workspace import column_sums


class GroupNormOptions(LayerOptions, frozen=True, tag_field="kind", tag="group-norm"):
    """scale·(x − μ) / √(σ² + `eps`) + bias, with mean and variance of each image over its pixels and the channels of
    one of `groups` equal parts (Wu & He 2018). Every channel has a scale and a bias, which are trained."""

    groups: Count = 32
    eps: Positive = 1e-5


class GroupNorm(Layer, options=GroupNormOptions):
    """y = s·x̂ + b, where x̂ = (x − μ) / √(σ² + eps) has mean 0 and variance 1 in every group of an image's channels."""

    kind, images, onnx_channels_first = "groupnorm", True, True

    def prepare(self, input_shape: Shape) -> Shape:
        channels, groups = input_shape[2], self.options.groups
        if channels % groups:
            raise DoesNotFit(self, "groups", f"{channels} channels cannot be divided into {groups} equal groups")
        self.parameters = [
            Parameter(f"{self.name}.{part}", (channels,), ("constant", initial), decay=False)
            for part, initial in (("scale", 1.0), ("bias", 0.0))
        ]
        return input_shape

    def forward(self, views: Views, x: Array, training: bool = False, draws: Draws | None = None) -> Array:
        scale, bias = (views[p.name] for p in self.parameters)
        self._normal, y = self.buffer("normal", x.shape, x), self.buffer("y", x.shape, x)
        normal = self._in_groups(self._normal)
        np.subtract(self._in_groups(x), self._mean(x), out=normal)
        np.square(self._normal, out=y)
        self._inverse = 1 / np.sqrt(self._mean(y) + self.options.eps)
        np.multiply(normal, self._inverse, out=normal)
        np.multiply(self._normal, scale, out=y)
        return np.add(y, bias, out=y)

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        """∂x = (∂x̂ − mean(∂x̂) − x̂·mean(∂x̂·x̂)) / √(σ² + eps), where ∂x̂ = s·∂y."""
        (scale, bias), sums = self.parameters, self.workspace.kernel(column_sums)
        channels, dx = dy.shape[-1], self.buffer("dx", dy.shape, dy)
        np.multiply(dy, self._normal, out=dx)
        sums(dx.reshape(-1, channels), gradients[scale.name])
        sums(dy.reshape(-1, channels), gradients[bias.name])
        if not need_dx:
            return None
        np.multiply(dy, views[scale.name], out=dy)
        np.multiply(dx, views[scale.name], out=dx)
        groups = self._in_groups(dx)
        np.multiply(self._in_groups(self._normal), self._mean(dx), out=groups)
        np.subtract(dy, dx, out=dx)
        np.subtract(groups, self._mean(dy), out=groups)
        np.multiply(groups, self._inverse, out=groups)
        return dx

    def torch(self, torch: ModuleType, x: Tensor, own: Mapping[str, Tensor], training: bool) -> Tensor:
        x, (groups, eps) = with_gradient(x), (self.options.groups, self.options.eps)
        return torch.nn.functional.group_norm(x, groups, own["scale"], own["bias"], eps)

    def onnx(self, views: Views) -> list[OnnxNode]:
        """An instance normalisation of groups, since GroupNormalization is younger than the opsets that are written."""
        (height, width, channels), groups = self.input_shape, self.options.groups
        scale, bias = ({p.name: views[p.name].reshape(-1, 1, 1)} for p in self.parameters)
        none = {f"{self.name}.ones": np.ones(groups, np.float32), f"{self.name}.zeros": np.zeros(groups, np.float32)}
        return [
            OnnxNode("Reshape", {f"{self.name}.groups": np.array([0, groups, -1])}),
            OnnxNode("InstanceNormalization", none, {"epsilon": self.options.eps}),
            OnnxNode("Reshape", {f"{self.name}.channels": np.array([0, channels, height, width])}),
            OnnxNode("Mul", scale),
            OnnxNode("Add", bias),
        ]

    def _in_groups(self, x: Array) -> Array:
        """x [n, h, w, channels] as [n, h·w, groups, channels of a group]."""
        height, width, channels = self.input_shape
        groups: int = self.options.groups
        return x.reshape(len(x), height * width, groups, channels // groups)

    def _mean(self, x: Array) -> Array:
        """The mean of each group of each image, [n, 1, groups, 1]."""
        return self._in_groups(x).mean(axis=(1, 3), keepdims=True)
