"""Messages between two ranks: what waits is found."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mpitrain.errors import Overdue
from mpitrain.mpi import Transport
from mpitrain.mpi.process import Process
from mpitrain.mpi.tags import Tag
from mpitrain.mpi.waiting import WakingClock
from mpitrain.protocols.server import choose

MESSAGES, TAG = 40, 9


class Napping(Process):
    """Counts naps instead of taking them."""

    def __init__(self, slept: list[float]) -> None:
        self._slept = slept

    def pause(self, nap: float, patience: float, describe: Callable[[], str]) -> None:
        self._slept[0] += nap


@pytest.mark.mpi(min_size=2)
def test_a_receiver_finds_all_that_waits(tmp_path: Path, transport: Transport) -> None:
    """At one go, though the library takes in one message a call, and only while it is called. The others send nothing
    meanwhile: what they need for the barrier would be taken in first."""
    folder = Path(transport.gather_texts(str(tmp_path), "the folder")[0])
    told, done = folder / "sent", folder / "found"
    if transport.rank == 1:
        for number in range(MESSAGES):
            transport.post(0, TAG, b"%03d" % number)
        told.touch()
    if transport.rank == 0:
        _wait_for(told)  # without a call of MPI
        found = []
        while (message := transport.poll(TAG)) is not None:
            found.append(message)
        done.touch()
        assert found == [(1, b"%03d" % number) for number in range(MESSAGES)]
    else:
        _wait_for(done)
    transport.flush()
    transport.barrier("the end")


def _wait_for(file: Path) -> None:
    """Wait until another rank has made a file, for a minute at most."""
    end = time.monotonic() + 60
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.01)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("beats", [0, 1])
def test_who_waits_for_a_rank_at_work_goes_on_waiting(transport: Transport, beats: int) -> None:
    """A deadline from its last heartbeat on: in simulated time. The rank that is silent is named."""
    first = Transport(transport.comm.Dup(), deadline=5.0)
    if first.rank == 0:
        for beat in range(beats):
            first.heartbeats.attend(first.waking() + 100.0 * (1 + beat), first.deadline, working=True)
        for rank in range(1, first.size):
            first.post(rank, TAG, b"all is sent")
        first.flush()
    else:
        first.receive(0, TAG, "the heartbeats")
        slept, now = [0.0], first.waking()
        first.waking = WakingClock(lambda: slept[0], lambda: 0.5)
        first.waking._time = now
        first.runtime = Napping(slept)
        with pytest.raises(Overdue, match=r"waited 5 s for rank 0 \(an answer\)"):
            first.until(lambda: slept[0] >= 100, "an answer", [0])
        assert slept[0] == pytest.approx(5.0 + 0.25 * beats, abs=0.6)
    transport.barrier("the end")


@pytest.mark.mpi(min_size=2)
def test_vectors_go_by_message_where_a_node_lacks_shared_memory(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks agree, though one alone has seen it; 64 MB are what containers have by default."""
    left = 64e6 if transport.rank == transport.size - 1 else 1e12
    monkeypatch.setattr("mpitrain.mpi.process.Process.shared_memory_left", staticmethod(lambda: left))
    assert choose(transport, "auto", False, 60_000_000) == "shared"
    assert choose(transport, "auto", False, 70_000_000) == "messages"
    assert choose(transport, "shared", False, 70_000_000) == "shared"


@pytest.mark.mpi(min_size=2)
def test_heartbeats_that_nobody_waited_for_are_taken(transport: Transport) -> None:
    """From any rank; no message is left when MPI ends, and none is waited for twice."""
    mine = Transport(transport.comm.Dup(), deadline=30.0)
    now = mine.waking()
    for beat in range(1 + mine.rank % 3):
        mine.heartbeats.attend(now + 100.0 * (1 + beat), mine.deadline, working=True)
    mine.leave()
    mine.leave()
    transport.barrier("all to have left")
    assert mine.poll(Tag.HEARTBEAT) is None
