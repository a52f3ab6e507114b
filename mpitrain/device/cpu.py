"""The CPU as a device: vectors lie where the protocols have them, and nothing is copied.

The GPU (gpu.py) has the same face. State vectors, gradients and activations lie on the device; windows and whatever
MPI or a file sees lie in host memory, unless MPI is CUDA-aware.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import xxhash

from mpitrain.codecs import replica
from mpitrain.data.prefetch import DEADLINE, Loader, open_loader
from mpitrain.flat import Array
from mpitrain.models.workspace import Workspace
from mpitrain.ops.residual import accumulate

Rule = TypeVar("Rule", bound=Callable[..., None])


class Cpu:
    """NumPy and Numba."""

    name = "cpu"
    why = ""  #: the reason for the choice, where there is one to tell
    direct = False  #: whether MPI takes this device's arrays as they are, on all ranks
    passing = ""  #: why it does or does not, where that is worth telling
    #: ops.residual.accumulate and codecs.replica.apply for vectors on the device; words are in host memory.
    emit = staticmethod(accumulate)
    apply_words = staticmethod(replica.apply)

    def __str__(self) -> str:
        return "CPU"

    def workspace(self) -> Workspace:
        """Buffers and array functions for a network."""
        return Workspace()

    def open_loader(self, corpus: Any, dtype: np.dtype, deadline: float = DEADLINE) -> Loader:
        """Minibatches on the device, copied ahead of use."""
        return open_loader(corpus, dtype, deadline=deadline)

    def transport(self, transport: Any) -> Any:
        """The transport, taking the device's arrays in collectives, and if `direct` in messages."""
        return transport

    def place(self, vector: Array) -> Array:
        """The host's vector on the device: a copy, unless it lies there."""
        return vector

    def upload(self, to: Array, vector: Array, steady: bool = False) -> None:
        """Copy a host vector to a device vector. The host's may be changed on return.

        A `steady` one is of `host_like`, and may be changed when a kernel launched later has ended.
        """
        np.copyto(to, vector)

    def download(self, vector: Array, to: Array) -> None:
        """Copy a device vector to a host vector, which is whole on return."""
        np.copyto(to, vector)

    def host_like(self, vector: Array) -> Array:
        """An empty host vector of the same size that copies quickly."""
        return np.empty_like(vector)

    def checksum(self, vector: Array) -> int:
        """Checksum of a contiguous vector's bytes, at memory speed. On return the vector is final.

        Sender and receiver must have it in the same kind of memory.
        """
        return int(xxhash.xxh3_64_intdigest(memoryview(vector).cast("B")))

    def fast(self, rule: Rule) -> Rule:
        """The rule, or one kernel that does the same to the bit."""
        return rule

    def outgoing(self, vector: Array, to: Array) -> "InPlace":
        """A way of `vector` to the host vector `to`, part by part while the device computes on."""
        return InPlace()

    def passage(self, vector: Array) -> "Passage":
        """A way for pieces of vectors like this one to the device and back."""
        return Passage(vector)


class InPlace:
    """The way of a vector that lies where it shall be."""

    def start(self, part: slice) -> None:
        """The part is final: let it go."""

    def finish(self) -> None:
        """Wait until all parts have arrived."""


class Passage:
    """Pieces read from outside, treated, and handed out, all in the memory of `vector`."""

    def __init__(self, vector: Array) -> None:
        self._piece = np.empty_like(vector[:0])

    def through(
        self,
        pieces: Iterable[slice],
        read: Callable[[slice, Array], None],
        treat: Callable[[slice, Array], Array | None],
    ) -> Iterator[tuple[slice, Array | None]]:
        """For each piece `read` fills a host buffer, and `treat` gets that on the device; yields what `treat` returns.

        What is yielded stays as it is until the next pass.
        """
        for piece in pieces:
            size = piece.stop - piece.start
            if self._piece.size < size:
                self._piece = np.empty_like(self._piece, shape=size)
            copy = self._piece[:size]
            read(piece, copy)
            yield piece, treat(piece, copy)


CPU = Cpu()
