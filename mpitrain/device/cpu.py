"""The CPU as a device: vectors are already in host memory, and nothing is copied.

The GPU (gpu.py) has the same interface. State vectors, gradients and activations are on the device; MPI windows and
everything that MPI or a file reads is in host memory, unless MPI is CUDA-aware.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import xxhash

from mpitrain.algorithms.optimizers import Rule
from mpitrain.compression import replica
from mpitrain.compression.residual import NO_LEVELS, accumulate
from mpitrain.device.one_pass import FUSED, compile_all
from mpitrain.device.prefetch import Loader, open_loader
from mpitrain.flat import Array
from mpitrain.models.workspace import Workspace
from mpitrain.mpi import Transport
from mpitrain.mpi.team import Team
from mpitrain.sampling.batch import Samples
from mpitrain.start import DEADLINE

#: Called with a kind of work (see `Pace.around`) and its bytes; returns the context in which the device does the work.
Around = Callable[[str, int], AbstractContextManager[object]]
UNOBSERVED = nullcontext()
Read = Callable[[slice, Array], object]  #: fills the array with a piece
Treat = Callable[[slice, Array], Array | None]  #: gets a piece, on the device, and returns what goes back

Ranks = TypeVar("Ranks", Transport, Team)

if TYPE_CHECKING:
    from mpitrain.models.torch.place import CpuPlace


class Cpu:
    """The CPU, which computes with NumPy and Numba."""

    name = "cpu"
    why = ""  #: the reason for the choice, if there is one to report
    direct = False  #: whether MPI accepts this device's arrays directly, on all ranks
    passing = ""  #: why MPI does or does not, if that is worth reporting
    phantom = False  #: whether vectors have no values, and nothing is computed
    emits_parts = True  #: whether `emit` takes no longer part by part
    around: Around | None = None  #: context of all work on vectors; None: work is done without one

    def __str__(self) -> str:
        return "CPU"

    def observed(self, around: Around) -> "Cpu":
        """The same device, which does its work on vectors within a context."""
        observed = copy.copy(self)
        observed.around = around
        return observed

    def _around(self, what: str, nbytes: int) -> AbstractContextManager[object]:
        return UNOBSERVED if self.around is None else self.around(what, nbytes)

    @property
    def host(self) -> "Cpu":
        """The device of vectors that stay in host memory."""
        return self

    def workspace(self) -> Workspace:
        """Buffers and array functions for a network."""
        return Workspace()

    def place(self) -> "CpuPlace":
        """Where a module of PyTorch's computes."""
        from mpitrain.models.torch.place import HOST

        return HOST

    def open_loader(self, corpus: Samples, dtype: np.dtype, deadline: float = DEADLINE) -> Loader:
        """Minibatches on the device, copied ahead of use."""
        return open_loader(corpus, dtype, deadline=deadline)

    def transport(self, transport: Ranks) -> Ranks:
        """The transport with collectives, and if `direct` also messages, that accept the device's arrays."""
        return transport

    def to_device(self, vector: Array) -> Array:
        """The host vector on the device: a copy, unless the device is the host."""
        return vector

    def upload(self, to: Array, vector: Array, steady: bool = False) -> None:
        """Copy a host vector to a device vector. The host vector may be changed on return.

        A `steady` one, made by `host_like`, may be changed only when a kernel launched later has ended.
        """
        np.copyto(to, vector)

    def download(self, vector: Array, to: Array) -> None:
        """Copy a device vector to a host vector, which is complete on return."""
        np.copyto(to, vector)

    def host_like(self, vector: Array) -> Array:
        """An uninitialised host vector of the same size that can be copied quickly."""
        return np.empty_like(vector)

    def host_words(self, size: int) -> Array:
        """Uninitialised host memory for emitted words, or their levels, that can be copied quickly."""
        return self.host_like(np.empty(size, np.uint32))

    def host_zeros(self, size: int, dtype: np.dtype) -> Array:
        """A host vector of zeros."""
        return np.zeros(size, dtype)

    def checksum(self, vector: Array) -> int:
        """Checksum of a contiguous vector's bytes, at memory speed. On return the vector is final.

        Sender and receiver must hold the vector in the same kind of memory.
        """
        with self._around("check", vector.nbytes):
            return int(xxhash.xxh3_64_intdigest(memoryview(vector).cast("B")))

    def emit(self, residual: Array, *arrays: Array, **how: Any) -> int:
        """`compression.residual.accumulate` for vectors on the device; words are in host memory."""
        with self._around("delta", residual.nbytes):
            return accumulate(residual, *arrays, **how)

    def apply_words(self, words: Array, step: int, counts: Array, weights: Array, levels: Array = NO_LEVELS) -> None:
        """`compression.replica.apply` for vectors on the device; words are in host memory."""
        with self._around("entries", words.nbytes):
            replica.apply(words, step, counts, weights, levels)

    def fast(self, rule: Rule) -> Rule:
        """The rule, or a single kernel that gives the same bits."""
        does = FUSED.get(rule, rule)
        if self.around is None:
            return does

        @wraps(does)
        def observed(updated: Array, *arrays: Array, **scalars: float) -> None:
            with self._around("update", updated.nbytes):
                does(updated, *arrays, **scalars)

        return observed

    def compile_rules(self, dtype: np.dtype) -> None:
        """Compile the kernels of `fast`, or load them from the cache on disk."""
        compile_all(dtype)

    def outgoing(self, vector: Array, to: Array) -> "InPlace":
        """An object that copies `vector` to the host vector `to`, part by part, while the device computes."""
        return InPlace()

    def staging(self, vector: Array) -> "Staging":
        """An object that stages pieces of vectors like this one to the device and back."""
        return Staging(vector)


class InPlace:
    """Stands in for the copy of a vector that needs no copy."""

    def start(self, part: slice) -> None:
        """Copy this part, which is final."""

    def finish(self) -> None:
        """Wait until all parts are copied."""


class Staging:
    """Processes pieces that are read from outside, all in the memory of `vector`."""

    def __init__(self, vector: Array) -> None:
        self._piece = np.empty_like(vector[:0])

    def through(self, pieces: Iterable[slice], read: Read, treat: Treat) -> Iterator[tuple[slice, Array | None]]:
        """For each piece, `read` fills a host buffer and `treat` gets it on the device; yields the results of `treat`.

        The yielded arrays remain valid until the next pass.
        """
        for piece in pieces:
            size = piece.stop - piece.start
            if self._piece.size < size:
                self._piece = np.empty_like(self._piece, shape=size)
            copy = self._piece[:size]
            read(piece, copy)
            yield piece, treat(piece, copy)


CPU = Cpu()
