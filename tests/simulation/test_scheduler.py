"""Turns of simulated ranks, virtual time, and what happens when nobody can go on."""

from math import inf

import numpy as np
import pytest

from mpitrain.mpi import Transport
from mpitrain.simulation.job import Aborted, Job
from mpitrain.simulation.messages import ClusterNetwork, Link
from mpitrain.simulation.scheduler import Deadlock, Scheduler
from tests.leftovers import left_behind


def test_ranks_take_turns_in_the_order_of_virtual_time() -> None:
    """One sleeps 3, 3, 3 s and the other 2, 2, 2, 2 s; where both end at 6 s, who fell asleep first is first."""
    scheduler, seen = Scheduler[None](2), list[tuple[float, int]]()

    def program(rank: int, seconds: float, times: int) -> None:
        for _ in range(times):
            scheduler.sleep(rank, seconds)
            seen.append((scheduler.now, rank))

    scheduler.run([lambda: program(0, 3.0, 3), lambda: program(1, 2.0, 4)])
    assert seen == [(2.0, 1), (3.0, 0), (4.0, 1), (6.0, 0), (6.0, 1), (8.0, 1), (9.0, 0)]


def test_patience_is_that_of_each_wait() -> None:
    """Of 10 s from 0, of which it is woken at 4; of 10 from then on; of 1; of 20, woken at 16; of 1; of 30, where the
    alarm of the wait before last would ring at 35."""
    scheduler, seen = Scheduler[None](2), list[float]()

    def waits() -> None:
        for patience in (10.0, 10.0, 1.0, 20.0, 1.0, 30.0):
            scheduler.park(0, patience, lambda: "the other")
            seen.append(scheduler.now)

    def wakes() -> None:
        for seconds in (4.0, 12.0, 40.0):
            scheduler.sleep(1, seconds)
            if scheduler.now < 20.0:
                scheduler.wake(0)

    scheduler.run([waits, wakes])
    assert seen == [4.0, 14.0, 15.0, 16.0, 17.0, 47.0]


def test_a_message_takes_latency_and_bytes_over_bandwidth() -> None:
    """1000 bytes at 1e6 bytes/s, 0.5 ms later; the sender goes on at once."""

    def program(transport: Transport) -> float:
        before = transport.clock()
        if transport.rank == 0:
            transport.post(1, 9, bytes(1000))
        else:
            transport.receive(0, 9, "a message")
        return transport.clock() - before

    sent, received = Job[float](2, ClusterNetwork(Link(5e-4, 1e6))).run(program)
    assert sent == 0.0 and received == pytest.approx(1.5e-3)


def test_ranks_that_wait_for_each_other_are_named() -> None:
    """At once, whatever the deadline: nothing is on its way."""

    def program(transport: Transport) -> None:
        if transport.rank < 2:
            transport.receive(1 - transport.rank, 9, "an answer")
        transport.barrier("the end")

    said = r"rank 0 waits for rank 1 \(an answer\); rank 1 waits for rank 0 \(an answer\); rank 2 waits for the end"
    with pytest.raises(Deadlock, match=said):
        Job[None](3).run(program)


def test_a_rank_that_dies_last_is_named() -> None:
    """All others have ended, so that nobody misses it."""
    job = Job[None](3, ClusterNetwork(Link(1e-4, 1e8)), stops={1: [(0.5, inf)]})
    with pytest.raises(Deadlock, match=r"^rank 1 has died$"):
        job.run(lambda transport: transport.sleep(float(transport.rank)))


def test_a_rank_that_works_long_is_no_deadlock_and_no_silence() -> None:
    """An hour under a deadline of five minutes: its heartbeats are heard, and who waits gives heartbeats too."""

    def program(transport: Transport) -> float:
        transport.watch()
        for _ in range(3600 if transport.rank == 0 else 0):
            transport.sleep(1.0)
            transport.heartbeat()
        transport.barrier("the end")
        transport.leave()
        return transport.clock()

    job = Job[float](3)
    assert min(job.run(program)) >= 3600.0 and not left_behind(job)


def test_what_a_rank_raises_is_raised_and_the_others_end() -> None:
    """Also those that wait, which unwind."""
    unwound = []

    def program(transport: Transport) -> None:
        try:
            if transport.rank == 1:
                transport.sleep(1.0)
                raise KeyError("lost")
            transport.barrier("the end")
        finally:
            unwound.append(transport.rank)

    with pytest.raises(KeyError, match="lost"):
        Job[None](3).run(program)
    assert sorted(unwound) == [0, 1, 2]


def test_a_call_that_blocks_ends_at_the_deadline(capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 1 dies between a barrier and MPI_Comm_split: the search for faults once waited for it without end."""

    def program(transport: Transport) -> None:
        transport.barrier("the others")
        if transport.rank == 1:
            transport.sleep(1.0)
        with transport.blocking("MPI_Comm_split"):
            transport.comm.Split(0)

    job = Job[None](3, ClusterNetwork(Link(1e-4, 1e8)), deadline=20.0, stops={1: [(0.5, inf)]})
    with pytest.raises(Aborted) as ended:
        job.run(program)
    assert ended.value.status == 1 and 20.0 < job.scheduler.now < 20.1
    assert "MPI_Comm_split has not returned for 20 s: another rank is silent" in capsys.readouterr().err


def test_ranks_share_the_cores_of_their_node() -> None:
    """Two cores. Ranks 0 and 1 compute 4 s each from 0 s on, rank 2 computes 2 s from 1 s on: at two thirds of the
    speed, rank 2 ends at 1 + 3 = 4 s; then the others, with 1 s left, at 5 s. Another node's rank 3 is not slowed."""

    def program(transport: Transport) -> float:
        began = transport.clock()
        if transport.rank == 2:
            transport.sleep(1.0)
        assert transport.runtime.pace is not None
        transport.runtime.pace.gradient(1)
        return transport.clock() - began

    seconds = {0: 4.0, 1: 4.0, 2: 2.0, 3: 4.0}
    job = Job[float](4, nodes=[0, 0, 0, 1], seconds=lambda rank, samples: seconds[rank] * samples, cores=2)
    assert job.run(program) == pytest.approx([5.0, 5.0, 4.0, 4.0])


def test_a_pause_lengthens_the_work_that_it_interrupts() -> None:
    """By its whole length: rank 2 stands still twice in its first 3 s of work, and once while it rests. Ranks 0 and 1
    share a core, with 2 s of work each: when 1 stands still after 1 s, 0 has 1.5 s left, and the core to itself."""

    def program(transport: Transport) -> list[float]:
        transport.runtime.pace.gradient(1)
        ends = [transport.clock()]
        if transport.rank == 2:
            transport.sleep(1.0)
            transport.runtime.pace.gradient(1)
            ends.append(transport.clock())
        return ends

    stops = {1: [(1.0, 4.0)], 2: [(0.25, 0.75), (3.0, 4.5), (5.5, 5.75)]}
    seconds = {0: 2.0, 1: 2.0, 2: 3.0}
    job = Job[list[float]](3, nodes=[0, 0, 1], seconds=lambda rank, samples: seconds[rank], cores=1, stops=stops)
    assert job.run(program) == [pytest.approx(ends, abs=1e-3) for ends in ([2.5], [5.5], [5.0, 9.0])]


def test_a_rank_that_dies_at_work_leaves_its_core_to_the_others() -> None:
    """Two share one: when 1 dies after half a second, 0 has 0.75 s left."""
    ends = []

    def program(transport: Transport) -> None:
        transport.runtime.pace.gradient(1)
        ends.append((transport.rank, transport.clock()))

    job = Job[None](2, nodes=[0, 0], seconds=lambda rank, samples: 1.0, cores=1, stops={1: [(0.5, inf)]})
    with pytest.raises(Deadlock, match=r"^rank 1 has died$"):
        job.run(program)
    assert ends == [pytest.approx((0, 1.25), abs=1e-3)]


def test_a_nodes_card_takes_one_message_after_another() -> None:
    """Three ranks of other nodes send 1 MB each to rank 0 at 1 MB/s and 0.1 s: the last is there at 0.1 + 3 s. Two more
    that share a node send theirs one after another; a rank of the same node needs the link within it."""

    def program(transport: Transport) -> float:
        transport.sleep(10.0 + 1e-9 * transport.rank - transport.clock())  # one after another
        began = transport.clock()
        if transport.rank == 0:
            for rank in (1, 2, 3, 4):
                transport.receive_into(rank, 9, np.zeros(1000000, np.uint8), "a megabyte")
        elif transport.rank < 5:
            transport.wait(transport.send(0, 9, np.zeros(1000000, np.uint8)), "it to leave")
        return transport.clock() - began

    network = ClusterNetwork(Link(0.1, 1e6), within=Link(0.0, 1e7), message=0.01)
    told = Job[float](5, network, nodes=[0, 1, 2, 2, 0]).run(program)
    assert told == pytest.approx([3.11, 1.11, 2.11, 3.11, 0.11])
