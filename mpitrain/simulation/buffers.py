"""What mpi4py takes for a buffer, as arrays."""

import numpy as np

from mpitrain.device.phantom import PhantomVector
from mpitrain.flat import Array
from mpitrain.mpi.launcher import MPI, BufSpec, BufSpecV, InPlace, TargetSpec


def flat(buffer: BufSpec) -> Array:
    """The array of a buffer, which is given alone or before what tells its type: flat, not copied, of its own type."""
    memory: Array = buffer[0] if isinstance(buffer, (list, tuple)) else buffer
    if isinstance(memory, PhantomVector):
        return memory
    array = memory if isinstance(memory, np.ndarray) else np.frombuffer(memory, dtype=np.uint8)
    if not array.flags.c_contiguous:
        raise ValueError("a buffer that is not contiguous")
    return array.reshape(-1)


def raw(buffer: BufSpec) -> Array:
    """The same, as bytes."""
    return flat(buffer).view(np.uint8)


def given(buffer: BufSpec | InPlace) -> Array | None:
    """What a rank gives; None if that is in place."""
    specified: Array = buffer
    return None if specified is MPI.IN_PLACE else flat(specified)


def counted(buffer: BufSpecV) -> tuple[Array, list[int]]:
    """The array of [array, counts, ...], and how long its parts are, one after another."""
    specified: Array = buffer
    memory, counts = flat(specified), [int(count) for count in specified[1]]
    return memory[: sum(counts)], counts


def offset(target: TargetSpec) -> int:
    """The first byte of (offset, count, type)."""
    place: Array = target
    return int(place[0])
