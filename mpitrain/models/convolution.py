"""Two-dimensional convolution, optionally followed by max-pooling in cache."""

from collections.abc import Iterator
from math import prod, sqrt

import numpy as np

from mpitrain.flat import Array, Parameter
from mpitrain.models.group_product import GroupProduct
from mpitrain.models.layer import DoesNotFit, Layer, Shape, Views
from mpitrain.models.pooling import MaxPool
from mpitrain.models.workspace import Patches, Product


class Convolution(Layer):
    """y = x * W + b, with W [kh, kw, inputs, filters]; then, if given, `pool`.

    Product and pooling treat a few examples at a time, so that the patches and the output before pooling stay in cache.
    The bias is added after pooling, with the same result: max(z) + b = max(z + b).

    With several `groups`, input channels and filters are divided into as many equal parts, one after another, and each
    filter sees only the channels of its own group. W is then [kh, kw, inputs / groups, filters].

    `deviation` defaults to √(`gain` / inputs of a filter).
    """

    kind = "conv"

    def __init__(
        self,
        filters: int,
        kernel: int,
        stride: int = 1,
        pad: int = 0,
        pool: MaxPool | None = None,
        *,
        deviation: float | None = None,
        bias: float = 0.0,
        gain: float = 2.0,
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.filters, self.kernel, self.stride, self.pad = filters, kernel, stride, pad
        self.pool, self.groups = pool, groups
        self.deviation, self.bias, self.gain = deviation, bias, gain

    def prepare(self, input_shape: Shape) -> Shape:
        self.require_image(input_shape)
        height, width, channels = input_shape
        rows = (height + 2 * self.pad - self.kernel) // self.stride + 1
        columns = (width + 2 * self.pad - self.kernel) // self.stride + 1
        if min(rows, columns) < 1:
            why = f"a kernel of {self.kernel} x {self.kernel} does not fit {height} x {width} pixels"
            raise DoesNotFit(self.name, "kernel", why)
        if channels % self.groups or self.filters % self.groups:
            why = f"{channels} channels and {self.filters} filters cannot both be divided into {self.groups} groups"
            raise DoesNotFit(self.name, "groups", why)
        self.image = (rows, columns)
        self._product = self._make_product()
        shape = (self.kernel, self.kernel, channels // self.groups, self.filters)
        deviation = sqrt(self.gain / prod(shape[:3])) if self.deviation is None else self.deviation
        weights = Parameter(f"{self.name}.weights", shape, ("gaussian", deviation))
        bias = Parameter(f"{self.name}.bias", (self.filters,), ("constant", self.bias), decay=False)
        self.parameters = [weights, bias]
        output = (*self.image, self.filters)
        if self.pool is None:
            return output
        try:
            return self.pool.connect(output, f"{self.name}.pool", self.workspace)
        except DoesNotFit as error:
            error.key = "pool"
            raise

    @property
    def operations(self) -> int:
        return self.image[0] * self.image[1] * prod(self.parameters[0].shape)

    def forward(self, views: Views, x: Array, training: bool = False, rng: np.random.Generator | None = None) -> Array:
        weights, bias = (views[p.name] for p in self.parameters)
        ops, pool = self.workspace.ops, self.pool
        self._x = x
        y = self.buffer("y", (len(x), *self.output_shape), x)
        if pool:
            self._places = pool.places(len(x))
        for block in self._blocks(x):
            z = self._before_pooling(len(x[block]), x) if pool else y[block]
            self._product.forward(x[block], weights, z)
            if pool:
                ops.max_pool(z, pool.size, pool.stride, y[block], self._places[block])
            if not self.leaves_bias:
                ops.add_bias(y[block], bias)
        if self.leaves_bias:
            self.workspace.bias = bias
        return y

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        weights, bias = self.parameters
        x, pool, ops = self._x, self.pool, self.workspace.ops
        dx = self.buffer("dx", x.shape, dy) if need_dx else None
        ops.column_sums(dy.reshape(-1, self.filters), gradients[bias.name])
        for block in self._blocks(x):
            if pool:
                dz = self._before_pooling(len(x[block]), dy)
                ops.max_unpool(dy[block], self._places[block], pool.size, pool.stride, dz)
            else:
                dz = dy[block]
            self._product.weight_gradient(x[block], dz, gradients[weights.name], add=block.start > 0)
            if dx is not None:
                self._product.input_gradient(dz, views[weights.name], dx[block])
        return dx

    def _make_product(self) -> Product:
        window = Patches(self.kernel, self.stride, self.pad, self.image)
        if self.groups == 1:
            return self.workspace.product(self.name, window)
        each = [self.workspace.product(f"{self.name}.group{group}", window) for group in range(self.groups)]
        return GroupProduct(self.name, each, self.workspace)

    def _before_pooling(self, n: int, like: Array) -> Array:
        return self.buffer("z", (n, *self.image, self.filters), like)

    def _blocks(self, x: Array) -> Iterator[slice]:
        examples = self._product.examples(len(x), x.shape[3], x.dtype.itemsize)
        for start in range(0, len(x), examples):
            yield slice(start, min(start + examples, len(x)))
            self.workspace.progress()
