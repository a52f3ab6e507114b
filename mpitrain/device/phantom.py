"""A device that computes nothing: its vectors have a length and no values. For simulations of time and traffic."""

from collections.abc import Callable
from functools import lru_cache
from math import inf
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike

from mpitrain.algorithms.optimizers import Rule
from mpitrain.compression.residual import NO_LEVELS
from mpitrain.device.cpu import Cpu
from mpitrain.flat import Array
from mpitrain.mpi.communicator import Pace
from mpitrain.sampling.batch import Batch, Place, Samples
from mpitrain.sampling.rng import stream
from mpitrain.start import DEADLINE

NO_SAMPLES = Batch(np.empty(0), np.empty(0, np.int32))
CHECKSUM = 1 << 63  # takes as many bytes in a message as almost every checksum


class PhantomVector(NDArrayOperatorsMixin):
    """A vector of `size` elements that takes no memory. What NumPy does to it has no effect; sums of it are 0."""

    ndim = 1

    def __init__(self, size: int, dtype: DTypeLike) -> None:
        self.size, self.dtype = size, np.dtype(dtype)
        self.shape, self.itemsize = (size,), self.dtype.itemsize
        self.nbytes = size * self.itemsize

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> "PhantomVector":
        return PhantomVector(len(range(*part.indices(self.size))), self.dtype)

    def __setitem__(self, part: slice, value: object) -> None:
        pass

    def copy(self) -> "PhantomVector":
        """Another phantom of the same size."""
        return PhantomVector(self.size, self.dtype)

    def get(self) -> "PhantomVector":
        """Itself, in host memory."""
        return self

    def view(self, dtype: DTypeLike) -> "PhantomVector":
        """The same bytes as elements of another type."""
        return PhantomVector(self.nbytes // np.dtype(dtype).itemsize, dtype)

    def fill(self, value: float) -> None:
        """No effect."""

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: object, out: "tuple[Any, ...] | None" = None, **how: object
    ) -> Any:
        return out[0] if out else self.copy()

    def __array_function__(
        self, function: Callable[..., Any], types: object, given: tuple[Any, ...], how: dict[str, Any]
    ) -> Any:
        if function in (np.empty_like, np.zeros_like):
            return PhantomVector(how.get("shape", self.size), how.get("dtype") or self.dtype)
        return None if function is np.copyto else 0.0


class Nothing:
    """A loader that reads no samples."""

    room = 0

    def request(self, indices: Array, place: Place = None) -> None:
        """No effect."""

    def take(self) -> Batch:
        """No samples."""
        return NO_SAMPLES

    def stage(self) -> None:
        """No effect."""

    def close(self) -> None:
        """No effect."""


@lru_cache(maxsize=256)
def some_words(count: int, size: int) -> Array:
    """Words uint32 [count] of entries of a vector of `size` elements, ascending, read-only. Every subset is equally
    likely: the length of a code of the gaps is then that of independent entries."""
    indices = stream(0, "phantom", count, size).choice(size, count, replace=False, shuffle=False)
    words = np.sort(indices).astype(np.uint32)
    words.flags.writeable = False
    return words


class Phantoms(Cpu):
    """Rules and checks pass their simulated time, and do nothing. A share `density` of gradients is emitted."""

    name, phantom = "phantom", True

    def __init__(self, pace: Pace, density: float = 0.0) -> None:
        self._pace = pace
        self._density, self._seen, self._emitted = density, 0, 0  # `_seen`: elements of gradients; `_emitted`: entries

    def __str__(self) -> str:
        return "phantom vectors"

    def open_loader(self, corpus: Samples, dtype: np.dtype, deadline: float = DEADLINE) -> Nothing:
        return Nothing()

    def to_device(self, vector: Array) -> Array:
        return PhantomVector(vector.size, vector.dtype)

    def host_zeros(self, size: int, dtype: np.dtype) -> Array:
        return PhantomVector(size, dtype)

    def host_words(self, size: int) -> Array:
        return np.empty(size, np.uint32)  # real memory: words are in the messages

    def emit(self, residual: Array, *arrays: Array, **how: Any) -> int:
        """Emit as many entries as make the total `density` times the elements seen so far, rounded. What an infinite
        threshold holds back comes next time, as from a residual."""
        gradient, words = arrays
        self._seen += gradient.size
        count = 0
        if how["threshold"] < inf:
            count = min(round(self._density * self._seen) - self._emitted, gradient.size)
        self._emitted += count
        words[:count] = some_words(count, gradient.size)
        words[:count] += np.uint32(how["first"])
        if how["levels"].size:
            how["levels"][:count] = 1
        self._pace.work("delta", residual.nbytes)
        return count

    def apply_words(self, words: Array, step: int, counts: Array, weights: Array, levels: Array = NO_LEVELS) -> None:
        self._pace.work("entries", words.nbytes)

    def checksum(self, vector: Array) -> int:
        self._pace.work("check", vector.nbytes)
        return CHECKSUM

    def fast(self, rule: Rule) -> Rule:
        return lambda updated, *arrays, **scalars: self._pace.work("update", updated.nbytes)
