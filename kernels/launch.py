"""The kernels as functions over device arrays, with the names, arguments and results of `tests/kernels/reference.py`.

Every function launches on CuPy's current stream and returns at once; none waits for the device. Arrays are C-contiguous
(slices of flat vectors are) and, unless stated otherwise, of one dtype, float32 or float64; they may be empty.
"""

from math import inf, prod
from typing import Any

import numpy as np

from mpitrain.algorithms.optimizers.adamw import factors
from mpitrain.flat import Array
from mpitrain.kernels.launcher import THREADS, Launcher

#: Constants as in residual.cu (TILE), normalisation.cu (HALF_MAX) and columns.cu (WIDTH, HEIGHT).
TILE, HALF_MAX, WIDTH, HEIGHT = 4096, 32, 32, 8
#: Rows of a matrix that one block adds up, and the most blocks that a grid has in its second dimension.
CHUNK, GRID_Y = 512, 65535
#: Rows of threads in a block, for images.
ROWS = 8

Arrays = tuple[Array, ...]
Shape = tuple[int, ...]


class Kernels(Launcher):
    """The kernels of one device, as functions. A `Workspace` finds those of layers by their names."""

    LRN_HALF_MAX = HALF_MAX

    # Sparse deltas

    def accumulate(
        self,
        residual: Array,
        gradient: Array,
        words: Array,
        result: Array,
        levels: Array | None = None,
        *,
        scale: float,
        threshold: float,
        limit: float = inf,
        greatest: int = 1,
        quantum: float = 0.0,
    ) -> None:
        """residual += scale·gradient; words uint32 [n] ← the elements that exceed the threshold, which is subtracted
        from them (levels: how often); `result` uint32 [2] ← (number of words, first non-finite index or 2³² − 1)."""
        shapes = residual.shape, gradient.shape, words.shape, words.shape if levels is None else levels.shape
        if len(set(shapes)) > 1 or residual.size > 1 << 31:
            raise ValueError(f"residual, gradient, words, levels of shapes {shapes}")
        result.fill(0xFFFFFFFF)
        if not residual.size:
            result[:1].fill(0)
            return
        if limit < inf:  # clipping would hide an infinite residual: it must exceed the threshold, to be reported
            threshold = min(threshold, float(np.finfo(residual.dtype).max))
        tiles = -(-residual.size // TILE)
        progress = self.xp.zeros(tiles + 1, np.uint64)
        self.launch(
            *("residual", "accumulate", residual.dtype, (tiles,), (THREADS,)),
            *(residual, gradient, words, result, progress, residual.size),
            *(float(scale), float(threshold), float(threshold if levels is None else 0), float(limit)),
        )
        if levels is not None:
            self.over(
                *("residual", "take_levels", residual.dtype, words.size),
                *(residual, words, result, levels),
                *(float(threshold), float(limit), np.uint32(greatest), float(quantum)),
            )

    def apply(
        self, words: Array, step: int, counts: Array, weights: Array, failed: Array, levels: Array | None = None
    ) -> None:
        """Apply received words to counts int32 and weights, unless a count would leave its range: `failed` uint32 [1]
        then gets the smallest such index."""
        if counts.shape != weights.shape:
            raise ValueError(f"counts {counts.shape}, weights {weights.shape}")
        dtype, units = weights.dtype, np.int32(step)
        self.over("deltas", "check", dtype, words.size, words, levels, words.size, units, counts, failed)
        self.over("deltas", "apply", dtype, words.size, words, levels, words.size, units, counts, weights, failed)

    # Messages

    def checksum(self, vector: Array, result: Array) -> None:
        """`result` uint64 [1] ← a sum over the vector's bytes that depends on their order."""
        words = vector.view(np.uint32)
        result.fill(words.size)
        real = np.dtype(np.float32)  # the kernel has no `real`: one compilation serves vectors of both
        self.over("checksum", "checksum", real, words.size, words, result, words.size)

    # Update rules

    def sgd(self, theta: Array, g: Array, *, eta: float) -> None:
        """θ ← θ − ηg."""
        self.rule("updates", "sgd", (theta, g), eta)

    def classical(self, theta: Array, v: Array, g: Array, *, eta: float, mu: float) -> None:
        """v ← μv − ηg; θ ← θ + v."""
        self.rule("updates", "classical", (theta, v, g), eta, mu)

    def look_ahead(self, out: Array, x: Array, v: Array, mu: float) -> None:
        """out ← x + μv."""
        self.rule("updates", "look_ahead", (out, x, v), mu)

    def krizhevsky(self, w: Array, inc: Array, g: Array, *, eta: float, mu: float, decay: float) -> None:
        """inc ← μ·inc − εg − ωε·w; w ← w + inc."""
        self.rule("updates", "krizhevsky", (w, inc, g), eta, mu, decay * eta)

    def adamw(self, x: Array, m: Array, v: Array, g: Array, *, eta: float, t: int, **constants: float) -> None:
        """m ← β₁m + (1 − β₁)g; v ← β₂v + (1 − β₂)g²; x ← x − η(m̂/(√v̂ + ε) + λx)."""
        self.rule("updates", "adamw", (x, m, v, g), *factors(eta, t, **constants))

    def mdownpour(self, y: Array, v: Array, g: Array, *, eta: float, delta: float) -> None:
        """v ← δv − ηg; y ← y − ηg + δv."""
        self.rule("updates", "mdownpour", (y, v, g), eta, delta)

    def moving_average(self, z: Array, theta: Array, *, rate: float) -> None:
        """z ← z + rate·(θ − z)."""
        self.rule("updates", "moving_average", (z, theta), rate)

    def add_scaled(self, y: Array, x: Array, scale: float) -> None:
        """y ← y + scale·x."""
        self.rule("updates", "add_scaled", (y, x), scale)

    # Losses

    def softmax_loss(self, z: Array, targets: Array, losses: Array) -> None:
        """`losses` float64 [n] ← the cross-entropy of each row of z [n, classes]; `targets` int32 [n]."""
        self._rows("softmax_loss", z, targets, losses)

    def softmax_gradient(self, z: Array, targets: Array, losses: Array) -> None:
        """As `softmax_loss`, and z ← ∂(mean loss)/∂z."""
        self._rows("softmax_gradient", z, targets, losses)

    def logistic_loss(self, z: Array, targets: Array, losses: Array) -> None:
        """`losses` float64 [n] ← the cross-entropy of each row's independent logistic outputs."""
        self._rows("logistic_loss", z, targets, losses)

    def logistic_gradient(self, z: Array, targets: Array, losses: Array) -> None:
        """As `logistic_loss`, and z ← ∂(mean loss)/∂z."""
        self._rows("logistic_gradient", z, targets, losses)

    def _rows(self, kernel: str, z: Array, targets: Array, losses: Array) -> None:
        rows, classes = z.shape
        if rows:
            threads = min(THREADS, -(-classes // 32) * 32)
            self.launch("losses", kernel, z.dtype, (rows,), (threads,), z, targets, losses, np.int32(classes))

    # Layers

    def add_bias(self, y: Array, bias: Array) -> None:
        """y [..., units] ← y + bias [units]."""
        self._activate("add_bias", y, bias)

    def bias_relu(self, y: Array, bias: Array | None) -> None:
        """y [..., units] ← max(y + bias, 0)."""
        self._activate("bias_relu", y, bias)

    def bias_sigmoid(self, y: Array, bias: Array | None) -> None:
        """y [..., units] ← 1 / (1 + exp(−(y + bias)))."""
        self._activate("bias_sigmoid", y, bias)

    def relu_backward(self, y: Array, dy: Array) -> None:
        """dy ← dy where y > 0, exactly 0 elsewhere."""
        self.rule("activations", "relu_backward", (y, dy))

    def sigmoid_backward(self, y: Array, dy: Array) -> None:
        """dy ← dy·y·(1 − y)."""
        self.rule("activations", "sigmoid_backward", (y, dy))

    def _activate(self, kernel: str, y: Array, bias: Array | None) -> None:
        if bias is not None and y.size >= 1 << 32:
            raise ValueError(f"{kernel}: 2^32 elements or more: {y.shape}")
        self.over("activations", kernel, y.dtype, y.size, y, bias, y.size, np.uint32(y.shape[-1]))

    def column_sums(self, x: Array, out: Array) -> None:
        """out [columns] ← the sum of each column of x [..., columns]."""
        columns = out.size
        if not columns:
            return
        rows = x.size // columns
        chunk = max(CHUNK, -(-rows // GRID_Y))
        chunks = max(1, -(-rows // chunk))
        sums = out if chunks == 1 else self.xp.empty((chunks, columns), x.dtype)
        grid = -(-columns // WIDTH), chunks
        self.launch("columns", "column_sums", x.dtype, grid, (WIDTH, HEIGHT), x, sums, rows, columns, chunk)
        if chunks > 1:
            self.column_sums(sums, out)

    def max_pool(self, x: Array, size: int, stride: int, out: Array, place: Array) -> None:
        """out [n, h', w', c] ← the maximum of each window of x [n, h, w, c]; `place` ← its position in it."""
        self._images(_pooling(place), "max_pool", out, (x, out, place), x.shape[1:], out.shape[1:3], size, stride)

    def max_unpool(self, dy: Array, place: Array, size: int, stride: int, out: Array) -> None:
        """out [n, h, w, c] ← 0 plus each dy [n, h', w', c] at the place of its maximum."""
        self._images(_pooling(place), "max_unpool", out, (dy, place, out), out.shape[1:], dy.shape[1:3], size, stride)

    def gather_patches(self, x: Array, kernel: tuple[int, int], stride: int, pad: int, out: Array) -> None:
        """out [n, h', w', kh·kw·c] ← the patch of x [n, h, w, c] under each output pixel, 0 outside the image."""
        self._images("patches", "gather_patches", out, (x, out), x.shape[1:], out.shape[1:3], *kernel, stride, pad)

    def add_patches(self, patches: Array, kernel: tuple[int, int], stride: int, pad: int, out: Array) -> None:
        """out [n, h, w, c] ← 0 plus every patch at its place."""
        pixels = patches.shape[1:3]
        self._images("patches", "add_patches", out, (patches, out), out.shape[1:], pixels, *kernel, stride, pad)

    def _images(
        self, file: str, kernel: str, out: Array, arrays: Arrays, image: Shape, pixels: Shape, *window: int
    ) -> None:
        """Launch with a row of threads for each pixel of `out`."""
        count = prod(out.shape[:3])
        if max(count, prod(image)) >= 1 << 31:
            raise ValueError(f"{kernel}: 2^31 pixels or more: {out.shape}")
        if out.size:
            grid = (min(-(-count // ROWS), self.most),)
            numbers = map(np.int32, (*image, *pixels, *window))
            self.launch(file, kernel, out.dtype, grid, (THREADS // ROWS, ROWS), *arrays, count, *numbers)

    def lrn_forward(
        self, x: Array, y: Array, d: Array, *, half: int, scale: float, power: float, offset: float
    ) -> None:
        """d ← offset + scale·Σ x² over the channels within `half`; y ← x·d^−power."""
        self._normalise("lrn_forward", (x, y, d), half, scale, power, offset)

    def lrn_backward(self, x: Array, d: Array, dy: Array, dx: Array, *, half: int, scale: float, power: float) -> None:
        """dx, which must not be dy, ← the gradient of `lrn_forward`, which computed d."""
        self._normalise("lrn_backward", (x, d, dy, dx), half, scale, power)

    def _normalise(self, kernel: str, arrays: Arrays, half: int, *scalars: float) -> None:
        x, channels = arrays[0], arrays[0].shape[-1]
        half = min(half, channels - 1)
        if half > HALF_MAX:
            raise ValueError(f"{kernel}: a window of {half} channels either side, at most {HALF_MAX}")
        if x.size >= 1 << 32:
            raise ValueError(f"{kernel}: 2^32 elements or more: {x.shape}")
        if x.size:
            sizes = x.size, np.int32(channels), np.int32(half)
            grid = (-(-x.size // THREADS),)
            self.launch("normalisation", kernel, x.dtype, grid, (THREADS,), *arrays, *sizes, *map(float, scalars))

    def dropout(
        self,
        x: Array,
        y: Array,
        scale: Array,
        rng: np.random.Generator,
        rate: float,
        kept: float,
        share: tuple[int, int] | None = None,
    ) -> None:
        """scale ← kept·(draw ≥ rate); y ← x·scale. Drops the same units as the CPU with `rng`, and advances
        `rng`.

        `rng` is a generator of mpitrain.sampling.rng. If ranks share a minibatch, `share` is (index of this rank's
        first row, size of the whole minibatch).
        """
        first, count = share or (0, len(x))
        row = prod(x.shape[1:])
        start, key = _draw(rng, count * row)
        numbers = x.size, start + first * row, np.uint64(key[0]), np.uint64(key[1]), np.float32(rate)
        if x.size:
            blocks = -(-(numbers[1] % 8 + x.size) // (8 * THREADS))
            self.launch("dropout", "dropout", x.dtype, (blocks,), (THREADS,), x, y, scale, *numbers, kept)


def _pooling(place: Array) -> str:
    """The file of the kernels for positions of this type."""
    return "pooling" if place.itemsize == 1 else "wide_pooling"


def _draw(rng: np.random.Generator, count: int) -> tuple[int, Array]:
    """Advance `rng` by `count` float32 draws; return the number of the first one and the generator's key.

    A block of Philox is four 64-bit numbers of two draws each; NumPy stores the block at its counter, how many of its
    numbers are used, and the unused half of the last one.
    """
    state: Any = rng.bit_generator.state
    if state["bit_generator"] != "Philox":
        raise TypeError(f"dropout on the device draws from Philox, not {state['bit_generator']}")
    counter, key = state["state"]["counter"], state["state"]["key"]
    start = 8 * (int(counter[0]) - 1) + 2 * state["buffer_pos"] - state["has_uint32"]
    end = start + count
    if counter[1:].any() or end >= 1 << 62:
        raise ValueError(f"a random stream at {counter} is further than anything draws")
    state["state"]["counter"] = np.array([end // 8, 0, 0, 0], np.uint64)
    state["buffer_pos"], state["has_uint32"] = 4, 0
    rng.bit_generator.state = state
    rng.random(end % 8, dtype=np.float32)
    return start, key
