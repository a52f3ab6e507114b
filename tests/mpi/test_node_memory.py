"""Memory of a node: all see what one writes, a lock excludes the others, and all hear why nothing is shared."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from mpitrain.errors import BadInput
from mpitrain.mpi import Transport, node_memory
from mpitrain.mpi.node_memory import NodeMemory


@pytest.mark.mpi(min_size=2)
def test_what_a_rank_writes_all_read(transport: Transport) -> None:
    memory = NodeMemory(transport)
    array = memory.array((memory.parts, 3), np.int32)
    assert not array.any()
    transport.barrier("all to have looked")
    array[memory.part] = memory.part + 1
    memory.together(lambda: None)
    assert array.tolist() == [[number + 1] * 3 for number in range(memory.parts)]
    assert memory.array((0, 4), np.float32).shape == (0, 4)


@pytest.mark.mpi(min_size=2)
def test_one_rank_at_a_time_holds_the_lock(transport: Transport) -> None:
    """Additions that are not atomic lose nothing."""
    memory = NodeMemory(transport)
    number = memory.array((1,), np.int64)
    for _ in range(200):
        with memory.locked() as mine:
            assert mine
            before = int(number[0])
            os.sched_yield()
            number[0] = before + 1
    transport.barrier("all to have counted")
    assert number[0] == 200 * memory.parts


@pytest.mark.mpi(min_size=2)
def test_a_lock_that_is_kept_is_not_waited_for(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = NodeMemory(transport)
    monkeypatch.setattr(node_memory, "PATIENCE", 0.05)
    if memory.part == 0:
        with memory.locked() as mine:
            assert mine
            transport.barrier("the lock")
            transport.barrier("the others")
    else:
        transport.barrier("the lock")
        with memory.locked() as mine:
            assert not mine
        transport.barrier("the others")


@pytest.mark.mpi(min_size=2)
def test_all_hear_where_a_rank_cannot_reach_the_memory(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers of their own: the file is another one there, or none."""
    told = transport.gather_texts
    for path in ("/proc/1/fd/77", "/dev/null 1"):
        if transport.rank == 1:
            monkeypatch.setattr(transport, "gather_texts", lambda *words, path=path: _wrong(told(*words), path))
        with pytest.raises(BadInput, match=path.split()[0]):
            NodeMemory(transport)
        monkeypatch.undo()


def _wrong(texts: list[str], path: str) -> list[str]:
    return [f"{path}" if text.startswith("/proc") else text for text in texts]


@pytest.mark.mpi(min_size=2)
def test_no_file_stays_open(transport: Transport) -> None:
    """Python's maps keep one each as long as they are there."""

    def files() -> int:
        links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return sum("memfd:mpitrain" in os.readlink(path) for path in links)

    before, memory = files(), NodeMemory(transport)
    arrays = [memory.array((1000,), np.float32) for _ in range(3)]
    assert arrays[2].size == 1000 and files() == before + 4
    del memory, arrays
    gc.collect()
    assert files() == before


@pytest.mark.mpi(min_size=2)
def test_what_one_rank_raises_all_raise(transport: Transport) -> None:
    memory = NodeMemory(transport)

    def action() -> None:
        if memory.part == 1:
            raise BadInput("train.h5: damaged")

    with pytest.raises(BadInput, match=r"train\.h5: damaged"):
        memory.together(action)
