"""The reader's half of the sequence lock, by the order of its calls: barriers on both sides of the vector's copy.

x86 loads in order anyway, so that no run on it can show a barrier that is missing.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpitrain.mpi.communicator import Pace
from mpitrain.mpi.waiting import Traffic
from mpitrain.protocols.server import versioned
from mpitrain.protocols.server.versioned import RemoteMemory, SharedMemory

CALLS: list[str] = []


class Recorded(np.ndarray):
    """Memory that notes when its version word or its vector is loaded."""

    def __getitem__(self, key: Any) -> Any:
        if self.dtype == np.int64 and key == 0:
            CALLS.append("version")
        return super().__getitem__(key)

    def __array_function__(self, function: Any, types: Any, arguments: Any, names: Any) -> Any:
        if function is np.copyto:
            CALLS.append("vector")
        return super().__array_function__(function, types, arguments, names)


class Memory:
    """Windows of one rank."""

    def __init__(self, transport: Any, nbytes: int, shared: bool = False) -> None:
        self.own = np.zeros(nbytes, np.uint8).view(Recorded)

    def segment(self, rank: int) -> np.ndarray:
        return self.own

    def sync(self) -> None:
        CALLS.append("barrier")

    def read(self, rank: int, offset: int, out: np.ndarray) -> None:
        CALLS.append("vector")

    def word(self, rank: int, offset: int) -> int:
        CALLS.append("version")
        return 0


@pytest.mark.parametrize("kind", [SharedMemory, RemoteMemory])
def test_a_reader_has_a_barrier_before_and_after_the_vector(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version, barrier, Θ, barrier, version."""
    monkeypatch.setattr(versioned, "Segments", Memory)
    transport = SimpleNamespace(rank=0, nodes=1, traffic=Traffic(), runtime=SimpleNamespace(pace=Pace()))
    memory = kind(transport, 4, np.dtype(np.float32), 0)
    CALLS.clear()
    assert memory.read(np.empty(4, np.float32)) == 0
    assert "".join(call[0] for call in CALLS if call != "barrier") == "vvv"
    first, vector, last = (index for index, call in enumerate(CALLS) if call != "barrier")
    assert CALLS[vector] == "vector" and "barrier" in CALLS[first:vector] and "barrier" in CALLS[vector:last]
