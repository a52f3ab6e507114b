"""When collectives end, by hand: they take the nodes' cards as messages do."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from mpitrain.mpi import Transport
from mpitrain.mpi.communicator import Communicator, Request
from mpitrain.simulation.job import Job
from mpitrain.simulation.messages import ClusterNetwork, Link
from tests.leftovers import left_behind

SLOW = ClusterNetwork(Link(1e-3, 1e6), within=Link(0.0, 1e7))
Start = Callable[[Transport, Communicator], Sequence[Request]]


def ends(nodes: Sequence[int], start: Start) -> list[list[float]]:
    """By rank: after how many milliseconds the requests end that it starts; `start` gets a communicator of the ranks
    with odd numbers, or with even ones, too."""

    def program(transport: Transport) -> list[float]:
        part = transport.comm.Split(transport.rank % 2)
        transport.sleep(10.0 + 1e-10 * transport.rank - transport.clock())  # one after another
        requests, seen = start(transport, part), dict[int, float]()
        while len(seen) < len(requests):
            seen |= {i: transport.clock() for i, each in enumerate(requests) if i not in seen and each.Test()}
            transport.runtime.pause(0.0, 1.0, lambda: "a request")
        return [1e3 * (seen[i] - 10.0) for i in range(len(requests))]

    job = Job[list[float]](len(nodes), SLOW, nodes=nodes)
    told = job.run(program)
    assert not left_behind(job)
    return told


def vector() -> np.ndarray:
    """4000 bytes, 4 ms for a card, 0.4 ms within a node."""
    return np.zeros(4000, np.uint8)


def test_a_broadcast_leaves_the_root_before_it_arrives() -> None:
    """4 ms for the card, 1 ms later at the other node."""
    assert ends([0, 1], lambda transport, _: [transport.start_broadcast(vector(), 0)]) == [
        pytest.approx([4.0]),
        pytest.approx([5.0]),
    ]


def test_two_broadcasts_over_a_link_take_twice_as_long() -> None:
    """The second waits for the first to leave; one the other way does not, as cards send and take at once."""
    told = ends([0, 1], lambda transport, _: [transport.start_broadcast(vector(), root) for root in (0, 0, 1)])
    assert told == [pytest.approx([4.0, 8.0, 5.0]), pytest.approx([5.0, 9.0, 4.0])]


def test_broadcasts_of_other_ranks_share_the_link_of_their_nodes() -> None:
    """Ranks 0 and 1 on one node, each to its own peer on the other."""
    told = ends([0, 0, 1, 1], lambda _, part: [part.Ibcast(vector(), 0)])
    assert [ended for (ended,) in told] == pytest.approx([4.0, 8.0, 5.0, 9.0])


def test_a_broadcast_and_messages_delay_each_other() -> None:
    """A message, a broadcast, and 2 ms later another message: each leaves 4 ms after the one before."""

    def start(transport: Transport, _: Communicator) -> list[Request]:
        move = transport.send if transport.rank == 0 else transport.start_receive
        first = [move(1 - transport.rank, 9, vector()), transport.start_broadcast(vector(), 0)]
        transport.sleep(2e-3)
        return [*first, move(1 - transport.rank, 9, vector())]

    assert ends([0, 1], start) == [pytest.approx([5.0, 8.0, 13.0]), pytest.approx([5.0, 9.0, 13.0])]


def test_a_broadcast_to_nodes_of_two_ranks_crosses_the_link_once() -> None:
    """From rank 1 within its node to rank 0, from there to the other node, and within that: 0.4 + 5 + 0.4 ms."""
    told = ends([0, 0, 1, 1], lambda transport, _: [transport.start_broadcast(vector(), 1)])
    assert told[2:] == [pytest.approx([5.8]), pytest.approx([5.8])]


def test_a_sum_over_two_nodes_of_two_ranks() -> None:
    """Halves within the nodes, 0.4 ms; then quarters, 2 ms each, over the nodes' cards, those of ranks 0 and 2 before
    the others': there at 3.4 and 5.4 ms, back, as the cards are busy until 4.4 ms, at 7.4 and 9.4; halves again."""
    told = ends([0, 0, 1, 1], lambda transport, _: [transport.start_sum(np.zeros(1000))])
    assert [ended for (ended,) in told] == pytest.approx([9.8] * 4)


def test_a_sum_takes_its_rounds_and_its_bytes() -> None:
    """Over four nodes: four rounds, and 2·3/4 of the array's bytes; of few bytes two rounds, each of all of them."""
    told = ends([0, 1, 2, 3], lambda transport, _: [transport.start_sum(np.zeros(1000))])
    assert [ended for (ended,) in told] == pytest.approx([4.0 + 1.5 * 8.0] * 4)
    told = ends([0, 1, 2, 3], lambda transport, _: [transport.start_sum(np.zeros(100))])
    assert [ended for (ended,) in told] == pytest.approx([2.0 + 2 * 0.8] * 4)


def test_of_three_ranks_two_sum() -> None:
    """Rank 0 gives its 8000 bytes to rank 1, who has them after 9 ms and exchanges halves, 4 ms each, with rank 2: that
    one's is there already, its own comes at 14 ms. So rank 1 sends the sum of its half until 17 ms, there at 18, and
    rank 2 from 14 ms on, there at 19; then rank 1 gives all of it to rank 0, until 27 ms, there at 28."""
    told = ends([0, 1, 2], lambda transport, _: [transport.start_sum(np.zeros(1000))])
    assert [ended for (ended,) in told] == pytest.approx([28.0, 27.0, 18.0])
