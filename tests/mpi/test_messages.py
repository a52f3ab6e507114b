"""Messages between two ranks: what waits is found."""

import time
from pathlib import Path

import pytest

from mpitrain.errors import Overdue
from mpitrain.mpi import Transport
from mpitrain.mpi.messages import SIGN
from mpitrain.mpi.waiting import WakingClock
from mpitrain.protocols.centre import choose

MESSAGES, TAG = 40, 9


@pytest.mark.mpi(min_size=2)
def test_a_receiver_finds_all_that_waits(tmp_path: Path, transport: Transport) -> None:
    """At one go, though the library takes in one message a call, and only while it is called."""
    told = Path(transport.gather_texts(str(tmp_path), "the folder")[0]) / "sent"
    if transport.rank == 1:
        for number in range(MESSAGES):
            transport.post(0, TAG, b"%03d" % number)
        told.touch()
    if transport.rank == 0:
        end = time.monotonic() + 60
        while not told.exists() and time.monotonic() < end:  # without a call of MPI
            time.sleep(0.01)
        found = []
        while (message := transport.poll(TAG)) is not None:
            found.append(message)
        assert found == [(1, b"%03d" % number) for number in range(MESSAGES)]
    transport.flush()
    transport.barrier("the end")


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("signs", [0, 1])
def test_who_waits_for_a_rank_at_work_goes_on_waiting(transport: Transport, signs: int) -> None:
    """One sign of life, and one deadline more, on a twin too: in simulated time."""
    first = Transport(transport.comm.Dup(), deadline=5.0)
    first._signed -= first.deadline
    twin = first.twin()
    if first.rank == 0:
        for _ in range(signs):
            first.sign()
            first.sign()  # too soon for another one
        for rank in range(1, first.size):
            first.post(rank, TAG, b"all is sent")
        first.flush()
    else:
        first.receive(0, TAG, "the signs")
        slept = [0.0]
        twin.waking = WakingClock(lambda: slept[0], lambda: 0.5)
        twin.sleep = lambda seconds: slept.__setitem__(0, slept[0] + seconds)
        backoff = twin.backoff("rank 0")
        with pytest.raises(Overdue):
            while slept[0] < 100:
                backoff.pause()
        assert slept[0] == pytest.approx(5.0 * (1 + signs), abs=0.1)
    first.hear_out()


@pytest.mark.mpi(min_size=2)
def test_vectors_go_by_message_where_a_node_lacks_shared_memory(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks agree, though one alone has seen it; 64 MB are what containers have by default."""
    left = 64e6 if transport.rank == transport.size - 1 else 1e12
    monkeypatch.setattr("mpitrain.mpi.transport._shared_memory_left", lambda: left)
    assert choose(transport, "auto", False, 60_000_000) == "shared"
    assert choose(transport, "auto", False, 70_000_000) == "messages"
    assert choose(transport, "shared", False, 70_000_000) == "shared"


@pytest.mark.mpi(min_size=2)
def test_signs_that_nobody_waited_for_are_taken(transport: Transport) -> None:
    """From any rank; no message is left when MPI ends, and none is waited for twice."""
    mine = Transport(transport.comm.Dup(), deadline=30.0)
    for _ in range(1 + mine.rank % 3):
        mine._signed -= mine.deadline
        mine.sign()
    mine.hear_out()
    assert mine.poll(SIGN) is None
    mine.hear_out()
