"""All parameters of a network in one flat vector, with named views into it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

Array = Any  # numpy.ndarray or cupy.ndarray

#: Elements that an update rule processes at a time: the fastest of 2^13 to 2^20 for a server update with momentum.
BLOCK = 131072


#: BLOCK on a GPU: large, for few kernel launches, with scratch that is small compared to the vectors.
GPU_BLOCK = 1 << 24


@dataclass(frozen=True)
class Parameter:
    """One named tensor of the flat vector.

    `initial` is ("gaussian", standard deviation) or ("constant", value); `decay` is False for biases, which a
    penalty may spare.
    """

    name: str
    shape: tuple[int, ...]
    initial: tuple[str, float]
    decay: bool = True

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The position of each parameter in the flat vector: in the given order, without gaps."""

    parameters: Sequence[Parameter]
    slices: dict[str, slice] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for parameter, part in zip(self.parameters, pieces_of([p.size for p in self.parameters]), strict=True):
            if parameter.name in self.slices:
                raise ValueError(f"two parameters are named {parameter.name}")
            self.slices[parameter.name] = part

    @property
    def size(self) -> int:
        """Length of the flat vector."""
        return sum(parameter.size for parameter in self.parameters)

    def views(self, vector: Array) -> dict[str, Array]:
        """Views of `vector` by name, with the shapes of the parameters. Raises ValueError for a wrong length."""
        if vector.shape != (self.size,):
            raise ValueError(f"a vector of shape {vector.shape} for a layout of {self.size} parameters")
        return {p.name: vector[self.slices[p.name]].reshape(p.shape) for p in self.parameters}


def block_of(vector: Array) -> int:
    """Elements of this vector that an update rule processes at a time, depending on the vector's device."""
    return BLOCK if isinstance(vector, np.ndarray) else GPU_BLOCK


def scratch_for(vector: Array) -> Array:
    """Scratch for an update rule on blocks of this vector."""
    return np.empty_like(vector[: block_of(vector)])


def on_host(array: Array) -> Array:
    """The array in host memory: itself, or a copy if it is on a GPU."""
    return array if isinstance(array, np.ndarray) else array.get()


def parameters_sha256(vector: Array) -> str:
    """SHA-256 of a vector's elements as little-endian float32, which tells models apart."""
    return sha256(np.ascontiguousarray(on_host(vector), dtype="<f4").data).hexdigest()


def fill(vector: Array, source: Array) -> None:
    """Copy `source` from host memory to the vector's device."""
    if isinstance(vector, np.ndarray):
        np.copyto(vector, source)
    else:
        vector.set(np.ascontiguousarray(source, vector.dtype))


def share(size: int, part: int, parts: int) -> slice:
    """One of `parts` consecutive pieces of range(size), whose sizes differ by at most one."""
    return slice(part * size // parts, (part + 1) * size // parts)


def pieces_of(counts: Sequence[int]) -> list[slice]:
    """Consecutive slices of a vector, `counts` elements long."""
    ends = list(accumulate(counts))
    return [slice(end - count, end) for count, end in zip(counts, ends, strict=True)]


def blocks(size: int, block: int = BLOCK) -> Iterator[slice]:
    """Slices that cover range(size) in cache-sized pieces."""
    for start in range(0, size, block):
        yield slice(start, min(start + block, size))


def block_slices(part: slice, block: int = BLOCK) -> list[slice]:
    """A slice cut into cache-sized pieces."""
    return [slice(part.start + b.start, part.start + b.stop) for b in blocks(part.stop - part.start, block)]


def block_pairs(part: slice, values: Array) -> Iterator[tuple[slice, Array]]:
    """The blocks of a slice, sized for the device of `values`, the slice's elements; each with its part of them."""
    for b in block_slices(part, block_of(values)):
        yield b, values[b.start - part.start : b.stop - part.start]
