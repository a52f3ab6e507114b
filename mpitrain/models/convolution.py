"""Two-dimensional convolution, with the max-pooling that follows it done in cache."""

from collections.abc import Iterator
from math import sqrt

import numpy as np

from mpitrain.errors import BadInput
from mpitrain.flat import Array, Parameter
from mpitrain.models.layer import Layer, Shape, Views
from mpitrain.models.pooling import MaxPool

#: Patch matrix of one block: rows that a matrix product needs to run at full speed, and bytes that stay in cache.
BLOCK_ROWS = 1024
BLOCK_BYTES = 8 << 20


class Convolution(Layer):
    """y = patches(x)·W + b, with W [kh, kw, inputs, filters]; then, if given, `pool`.

    A few examples at a time go through patches, product and pooling, so that neither the patches nor the output before
    pooling leave the cache. The bias is added after pooling, which gives the same numbers: max(z) + b = max(z + b).
    `deviation` defaults to √(`gain` / (kh·kw·inputs)).
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
    ) -> None:
        super().__init__()
        self.filters, self.kernel, self.stride, self.pad = filters, kernel, stride, pad
        self.pool = pool
        self.deviation, self.bias, self.gain = deviation, bias, gain

    def prepare(self, input_shape: Shape) -> Shape:
        height, width, channels = input_shape
        rows = (height + 2 * self.pad - self.kernel) // self.stride + 1
        columns = (width + 2 * self.pad - self.kernel) // self.stride + 1
        if min(rows, columns) < 1:
            raise BadInput(
                f"{self.name}: a {self.kernel} x {self.kernel} kernel does not fit {height} x {width} pixels"
            )
        self.image: Shape = (rows, columns)
        self.depth = self.kernel**2 * channels
        deviation = sqrt(self.gain / self.depth) if self.deviation is None else self.deviation
        shape = (self.kernel, self.kernel, channels, self.filters)
        weights = Parameter(f"{self.name}.weights", shape, ("gaussian", deviation))
        bias = Parameter(f"{self.name}.bias", (self.filters,), ("constant", self.bias), decay=False)
        self.parameters = [weights, bias]
        output = (*self.image, self.filters)
        return self.pool.connect(output, f"{self.name}.pool", self.workspace) if self.pool else output

    def forward(self, views: Views, x: Array, training: bool = False, rng: np.random.Generator | None = None) -> Array:
        weights, bias = (views[p.name] for p in self.parameters)
        ops, pool = self.workspace.ops, self.pool
        self._x = x
        y = self.buffer("y", (len(x), *self.output_shape), x)
        if pool:
            self._places = pool.places(len(x))
        for block in self._blocks(x):
            patches = self._patches(x[block])
            z = self.buffer("z", (len(patches), self.filters), x) if pool else y[block].reshape(-1, self.filters)
            np.matmul(patches, weights.reshape(self.depth, self.filters), out=z)
            if pool:
                ops.max_pool(self._images(z), pool.size, pool.stride, y[block], self._places[block])
            np.add(y[block], bias, out=y[block])
        return y

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        weights, bias = self.parameters
        x, pool, ops = self._x, self.pool, self.workspace.ops
        matrix = views[weights.name].reshape(self.depth, self.filters)
        total = gradients[weights.name].reshape(self.depth, self.filters)
        dx = self.buffer("dx", x.shape, dy) if need_dx else None
        np.sum(dy.reshape(-1, self.filters), axis=0, out=gradients[bias.name])
        for block in self._blocks(x):
            patches = self._patches(x[block])
            if pool:
                dz = self.buffer("z", (len(patches), self.filters), dy)
                ops.max_unpool(dy[block], self._places[block], pool.size, pool.stride, self._images(dz))
            else:
                dz = dy[block].reshape(-1, self.filters)
            if block.start == 0:
                np.matmul(patches.T, dz, out=total)
            else:  # NumPy's product cannot add to its output
                part = self.buffer("part", total.shape, dy)
                np.add(total, np.matmul(patches.T, dz, out=part), out=total)
            if dx is not None:
                np.matmul(dz, matrix.T, out=patches)
                ops.add_patches(self._images(patches), (self.kernel, self.kernel), self.stride, self.pad, dx[block])
        return dx

    def _blocks(self, x: Array) -> Iterator[slice]:
        """Runs of examples whose patch matrix is of the size that the product likes."""
        rows = self.image[0] * self.image[1]
        examples = max(1, min(BLOCK_ROWS // rows, BLOCK_BYTES // (rows * self.depth * x.dtype.itemsize)))
        for start in range(0, len(x), examples):
            yield slice(start, min(start + examples, len(x)))
            self.workspace.pulse()

    def _patches(self, x: Array) -> Array:
        patches = self.buffer("patches", (len(x) * self.image[0] * self.image[1], self.depth), x)
        kernel = (self.kernel, self.kernel)
        self.workspace.ops.gather_patches(x, kernel, self.stride, self.pad, self._images(patches))
        return patches

    def _images(self, matrix: Array) -> Array:
        return matrix.reshape(-1, *self.image, matrix.shape[1])
