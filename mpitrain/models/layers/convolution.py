"""Two-dimensional convolution, optionally followed by max-pooling in cache."""

from collections.abc import Iterator, Mapping
from types import ModuleType

from mpitrain.flat import Array, blocks
from mpitrain.keys import Count, Few, NotNegative
from mpitrain.models.layer import DoesNotFit, Finite, LayerOptions, OnnxNode, Pixels, Shape, Tensor, Views, Weighted
from mpitrain.models.layers import max_pool
from mpitrain.models.model import Draws
from mpitrain.models.patches import GroupProduct, PatchProduct, convolution
from mpitrain.models.workspace import Patches, column_sums


class ConvolutionOptions(LayerOptions, frozen=True, tag_field="kind", tag="convolution"):
    """`filters` square filters of side `kernel`, `stride` pixels apart, over an image with `pad` zeros at each edge;
    then, if `pool` is given, the maximum of windows of side `pool`, `pool_stride` apart (by default `pool`).

    With several `groups`, channels and filters are divided into as many equal parts, and each filter sees only the
    channels of its own group.
    """

    filters: Count
    kernel: Pixels
    stride: Pixels = 1
    pad: Few = 0
    pool: Pixels | None = None
    pool_stride: Pixels | None = None
    groups: Count = 1
    gain: NotNegative = 2.0
    deviation: NotNegative | None = None
    bias: Finite = 0.0  # the initial one of every filter

    def __post_init__(self) -> None:
        if self.pad >= self.kernel:
            raise ValueError(f"pad = {self.pad}: at least the kernel's {self.kernel}; filters would see only zeros")


class Convolution(Weighted, options=ConvolutionOptions):
    """y = x * W + b, with W [kh, kw, inputs, filters]; then, if given, `pool`.

    Product and pooling treat a few examples at a time, so that the patches and the output before pooling stay in cache.
    The bias is added after pooling, with the same result: max(z) + b = max(z + b).

    With several `groups`, input channels and filters are divided into as many equal parts, one after another, and each
    filter sees only the channels of its own group. W is then [kh, kw, inputs / groups, filters].
    """

    kind, images, onnx_channels_first = "conv", True, True

    def __init__(self, options: ConvolutionOptions) -> None:
        super().__init__(options)
        self.filters, self.kernel, self.stride, self.pad = options.filters, options.kernel, options.stride, options.pad
        self.groups = options.groups
        pooled = max_pool.MaxPoolOptions(options.pool, options.pool_stride) if options.pool else None
        self.pool = max_pool.MaxPool(pooled) if pooled else None

    def prepare(self, input_shape: Shape) -> Shape:
        height, width, channels = input_shape
        rows = (height + 2 * self.pad - self.kernel) // self.stride + 1
        columns = (width + 2 * self.pad - self.kernel) // self.stride + 1
        if min(rows, columns) < 1:
            why = f"a kernel of {self.kernel} x {self.kernel} does not fit {height} x {width} pixels"
            raise DoesNotFit(self, "kernel", why)
        if channels % self.groups or self.filters % self.groups:
            why = f"{channels} channels and {self.filters} filters cannot both be divided into {self.groups} groups"
            raise DoesNotFit(self, "groups", why)
        self.image = (rows, columns)
        self._product = self._make_product()
        self.set_parameters((self.kernel, self.kernel, channels // self.groups, self.filters), rows * columns)
        output = (*self.image, self.filters)
        if self.pool is None:
            return output
        try:
            return self.pool.connect(output, f"{self.name}.pool", self.workspace)
        except DoesNotFit as error:
            error.layer, error.key = self, "pool"
            raise

    def forward(self, views: Views, x: Array, training: bool = False, draws: Draws | None = None) -> Array:
        weights, bias = (views[p.name] for p in self.parameters)
        pool, self._x = self.pool, x
        y = self.buffer("y", (len(x), *self.output_shape), x)
        if pool:
            self._places = pool.places(len(x))
        for block in self._blocks(x):
            z = self._before_pooling(len(x[block]), x) if pool else y[block]
            self._product.forward(x[block], weights, z)
            if pool:
                pool.pool(z, y[block], self._places[block])
            self.add_bias(y[block], bias)
        return y

    def backward(self, views: Views, gradients: Views, dy: Array, need_dx: bool = True) -> Array | None:
        weights, bias = self.parameters
        x, pool = self._x, self.pool
        dx = self.buffer("dx", x.shape, dy) if need_dx else None
        self.workspace.kernel(column_sums)(dy.reshape(-1, self.filters), gradients[bias.name])
        for block in self._blocks(x):
            if pool:
                dz = self._before_pooling(len(x[block]), dy)
                pool.unpool(dy[block], self._places[block], dz)
            else:
                dz = dy[block]
            self._product.weight_gradient(x[block], dz, gradients[weights.name], add=block.start > 0)
            if dx is not None:
                self._product.input_gradient(dz, views[weights.name], dx[block])
        return dx

    def torch(self, torch: ModuleType, x: Tensor, own: Mapping[str, Tensor], training: bool) -> Tensor:
        filters = own["weights"].permute(3, 2, 0, 1)
        y = torch.nn.functional.conv2d(x, filters, own["bias"], self.stride, self.pad, groups=self.groups)
        return self.pool.torch(torch, y, {}, training) if self.pool else y

    def onnx(self, views: Views) -> list[OnnxNode]:
        weights, bias = (p.name for p in self.parameters)
        constants = {weights: views[weights].transpose(3, 2, 0, 1), bias: views[bias]}
        shape = {"kernel_shape": [self.kernel] * 2, "strides": [self.stride] * 2, "pads": [self.pad] * 4}
        return [
            OnnxNode("Conv", constants, {"group": self.groups, **shape}),
            *(self.pool.onnx({}) if self.pool else ()),
        ]

    def _make_product(self) -> PatchProduct | GroupProduct:
        if self.groups == 1:
            return self._product_of(self.name)
        each = [self._product_of(f"{self.name}.group{group}") for group in range(self.groups)]
        return GroupProduct(self.name, each, self.workspace)

    def _product_of(self, name: str) -> PatchProduct:
        window = Patches(self.kernel, self.stride, self.pad, self.image)
        return self.workspace.kernel(convolution)(name, window, self.workspace)

    def _before_pooling(self, n: int, like: Array) -> Array:
        return self.buffer("z", (n, *self.image, self.filters), like)

    def _blocks(self, x: Array) -> Iterator[slice]:
        for block in blocks(len(x), self._product.examples(len(x), x.shape[3], x.dtype.itemsize)):
            yield block
            self.workspace.progress()
