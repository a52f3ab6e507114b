"""A simulated communicator does what MPI's does: the same programs on both, checked against NumPy.

Under mpirun they run over MPI too, on as many ranks as there are; the simulated ones are four.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mpitrain.mpi import Transport
from mpitrain.mpi.team import Team
from mpitrain.mpi.windows import Segments
from mpitrain.simulation.job import Job
from mpitrain.simulation.messages import ClusterNetwork
from tests.leftovers import left_behind

RANKS, TAG = 4, 9
On = Callable[[Callable[[Transport], Any]], None]


@pytest.fixture(params=["simulated", "late", pytest.param("MPI", marks=pytest.mark.mpi(min_size=2))])
def on_ranks(request: pytest.FixtureRequest) -> On:
    """Runs a program on every rank; when simulated, nothing may be left under way."""
    if request.param == "MPI":
        transport = request.getfixturevalue("transport")
        return lambda program: program(transport)

    def run(program: Callable[[Transport], Any]) -> None:
        job = Job[Any](RANKS, ClusterNetwork(jitter=1e-5 if request.param == "late" else 0.0, seed=3))
        job.run(program)
        assert not left_behind(job)

    return run


def own(transport: Transport, rank: int | None = None, size: int = 11) -> np.ndarray:
    """Numbers of a rank whose sums are exact."""
    return np.arange(size, dtype=np.float32) * (2 + (transport.rank if rank is None else rank))


def everyone(transport: Transport) -> np.ndarray:
    """All ranks' numbers, one row each."""
    return np.array([own(transport, rank) for rank in range(transport.size)])


def test_messages_of_two_ranks_stay_in_order(on_ranks: On) -> None:
    """Each tag by itself, also long ones before short ones; a probe takes the next of its tag, from anybody."""

    def program(transport: Transport) -> None:
        for rank in range(1, transport.size) if transport.rank == 0 else ():
            for number in range(20):
                transport.post(rank, TAG + number % 2, bytes([number]) * (5000 if number % 3 else 1))
        if transport.rank:
            transport.barrier("all to be sent")
            for tag in (1, 0):
                found = [transport.receive(0, TAG + tag, "a message") for _ in range(10)]
                assert [(each[0], len(each)) for each in found] == [
                    (n, 5000 if n % 3 else 1) for n in range(tag, 20, 2)
                ]
        else:
            transport.barrier("all to be sent")
        transport.flush()
        transport.barrier("the end")
        assert transport.poll(TAG) is None and not transport.waiting(TAG)

    on_ranks(program)


def test_a_posted_receive_gets_the_message_and_a_wrong_length_is_refused(on_ranks: On) -> None:
    """From the rank and with the tag that it names."""

    def program(transport: Transport) -> None:
        after, before = (transport.rank + 1) % transport.size, (transport.rank - 1) % transport.size
        into = np.zeros(44, np.uint8)
        receive = transport.start_receive(before, TAG, into)
        transport.wait(transport.send(after, TAG, own(transport)), "a vector to leave")
        transport.wait(receive, "a vector")
        np.testing.assert_array_equal(into.view(np.float32), own(transport, before))
        transport.post(after, TAG, b"short")
        with pytest.raises(ValueError, match=f"5 bytes from rank {before}, expected 44"):
            transport.receive_into(before, TAG, into, "a vector")
        transport.flush()

    on_ranks(program)


def test_a_matched_send_ends_when_it_is_taken(on_ranks: On) -> None:
    """Not before, however long it waits there."""

    def program(transport: Transport) -> None:
        if transport.rank == 0:
            sends = [transport.send_matched(rank, TAG, b"words") for rank in range(1, transport.size)]
            transport.barrier("the messages to be under way")
            transport.sleep(0.02)
            assert not any(send.Test() for send in sends)
            transport.barrier("the others to take them")
            transport.until(lambda: all(send.Test() for send in sends), "the messages to be taken")
        else:
            transport.barrier("the messages to be under way")
            transport.barrier("the others to take them")
            taken: list[Any] = []

            def came() -> bool:
                taken.extend([found] if (found := transport.match(TAG, lambda _, n: np.empty(n, np.uint8))) else [])
                return bool(taken) and bool(taken[0][1].Test())

            transport.until(came, "words")
            assert (taken[0][0], bytes(taken[0][2])) == (0, b"words")

    on_ranks(program)


def test_collectives_agree_with_numpy(on_ranks: On) -> None:
    """All at once under way, in the same order everywhere; pieces of different lengths, one of them empty."""

    def program(transport: Transport) -> None:
        rows, ranks = everyone(transport), transport.size
        counts = [11 - 2 * (ranks - 1), *[2] * (ranks - 1)] if ranks < 6 else [11, *[0] * (ranks - 1)]
        piece = slice(sum(counts[: transport.rank]), sum(counts[: transport.rank + 1]))
        summed, greatest, spread = own(transport), own(transport), own(transport)
        at_root, share, gathered = np.zeros(11, np.float32), np.zeros(counts[transport.rank], np.float32), -rows[0]
        given, scattered, mine = own(transport), own(transport), rows[0][piece].copy()  # MPI keeps no array alive
        in_place = np.full(11, np.nan, np.float32)
        in_place[piece] = rows[0][piece]
        requests = [
            transport.start_sum(summed),
            transport.start_maximum(greatest),
            transport.start_broadcast(spread, 1),
            transport.start_reduce(1, given, at_root if transport.rank == 1 else None),
            transport.start_reduce_scatter(scattered, share, counts),
            transport.start_gather(mine, gathered, counts),
            transport.start_gather(None, in_place, counts),
            transport.comm.Ibarrier(),
        ]
        for request in reversed(requests):
            transport.wait(request, "a collective")
        np.testing.assert_array_equal(summed, rows.sum(0))
        np.testing.assert_array_equal(greatest, rows.max(0))
        np.testing.assert_array_equal(spread, rows[1])
        np.testing.assert_array_equal(at_root, rows.sum(0) if transport.rank == 1 else np.zeros(11))
        np.testing.assert_array_equal(share, rows.sum(0)[piece])
        np.testing.assert_array_equal(gathered, rows[0])
        np.testing.assert_array_equal(in_place, rows[0])
        text = "ü" * transport.rank
        assert transport.gather_texts(text, "texts") == ["ü" * rank for rank in range(ranks)]
        assert transport.broadcast(text.encode(), "a text", 1) == "ü".encode()

    on_ranks(program)


def test_a_duplicate_is_matched_by_itself(on_ranks: On) -> None:
    """Rank 0 starts its sums in the other order, the one on the communicator and the one on its duplicate."""

    def program(transport: Transport) -> None:
        duplicate, x, y = transport.duplicate(), own(transport), 10 * own(transport)
        requests = [lambda: transport.start_sum(x), lambda: duplicate.start_sum(y)]
        for request in [start() for start in (requests if transport.rank else requests[::-1])]:
            transport.wait(request, "a sum")
        np.testing.assert_array_equal(y, 10 * x)
        np.testing.assert_array_equal(x, everyone(transport).sum(0))

    on_ranks(program)


def test_a_team_is_matched_by_itself(on_ranks: On) -> None:
    """The ranks of each colour sum at their first, in place, and get its numbers; the others see nothing of it."""

    def program(transport: Transport) -> None:
        ranks = [rank for rank in range(transport.size) if rank % 2 == transport.rank % 2]
        team = Team(transport, [[rank for rank in range(transport.size) if rank % 2 == odd] for odd in (0, 1)])
        x = own(transport)
        team.wait(team.start_reduce(0, x, x if team.leads else None), "a sum")
        assert (team.rank, team.size, team.leader) == (transport.rank // 2, len(ranks), transport.rank % 2)
        if team.leads:
            np.testing.assert_array_equal(x, everyone(transport)[ranks].sum(0))
        y = own(transport)
        team.wait(team.start_broadcast(y, 0), "a vector")
        np.testing.assert_array_equal(y, own(transport, transport.rank % 2))
        assert team.traffic.bytes_sent == (44 if not team.leads else 44 * (team.size - 1))
        assert team.traffic.bytes_sent == transport.traffic.bytes_sent

    on_ranks(program)


def test_windows_are_read_added_to_and_swapped(on_ranks: On) -> None:
    """No addition is lost; of all that swap a word for another, one finds what it expected."""

    def program(transport: Transport) -> None:
        memory, ranks = Segments(transport, 64), transport.size
        for rank in range(ranks):
            memory.add(rank, 16, np.full(4, 1.0 + transport.rank, np.float64))
        memory.complete()
        swapped = memory.swap_word(0, 0, 0, 7 + transport.rank)
        transport.barrier("all to have added")
        memory.sync()
        found = np.zeros(32, np.uint8)
        memory.read((transport.rank + 1) % ranks, 16, found)
        assert found.view(np.float64).tolist() == [ranks * (ranks + 1) / 2] * 4
        winners = transport.gather_texts(str(swapped), "what each has found")
        assert winners.count("0") == 1 and set(winners) <= {"0", str(7 + winners.index("0"))}
        assert memory.word(0, 0) == 7 + winners.index("0")
        memory.close()

    on_ranks(program)


def test_shared_memory_is_the_same_for_all(on_ranks: On) -> None:
    """What a rank writes the others see after a barrier."""

    def program(transport: Transport) -> None:
        memory = Segments(transport, 8, shared=True)
        memory.segment((transport.rank + 1) % transport.size)[:] = transport.rank
        memory.sync()
        transport.barrier("all to have written")
        memory.sync()
        for rank in range(transport.size):
            assert memory.segment(rank).tolist() == [(rank - 1) % transport.size] * 8
        transport.barrier("all to have read")
        memory.close()

    on_ranks(program)


def test_nodes_are_told_apart() -> None:
    """Ranks of two nodes, by turns: each node has a leader and a barrier of its own."""

    def program(transport: Transport) -> tuple[int, int, int, bool]:
        if transport.rank % 2:
            transport.local_barrier("the second node")
        transport.barrier("all")
        return transport.nodes, transport.local_rank, transport.local_size, transport.leader

    told = Job[tuple[int, int, int, bool]](5, nodes=[0, 1, 0, 1, 0]).run(program)
    assert told == [(2, 0, 3, True), (2, 0, 2, True), (2, 1, 3, False), (2, 1, 2, False), (2, 2, 3, False)]


def test_a_wait_sees_what_its_own_serving_has_done(on_ranks: On) -> None:
    """`serve` may take what the wait is for, and yet say that there was nothing that begins it anew."""

    def program(transport: Transport) -> None:
        found: list[Any] = []

        def serve() -> bool:
            found.extend([message] if (message := transport.poll(TAG)) else [])
            return False

        if transport.rank:
            transport.post(0, TAG, b"here")
        else:
            transport.until(lambda: len(found) == transport.size - 1, "messages", serve=serve)
        transport.flush()

    on_ranks(program)
