"""What a centre holds when a rank is lost in the middle of an exchange."""

import numpy as np
import pytest

from mpitrain.algorithms.block_momentum import BlockMomentum
from mpitrain.algorithms.optimizers import plain
from mpitrain.device import CPU
from mpitrain.errors import RankLost
from mpitrain.flat import BLOCK
from mpitrain.protocols.messages import Added, Move
from mpitrain.protocols.model_averaging import PIECE, CommonCentre
from mpitrain.protocols.server import by_messages
from mpitrain.protocols.server.by_messages import ServingCentre
from mpitrain.protocols.server.interface import Source
from mpitrain.sampling.queue import Queue, Work
from mpitrain.sampling.stages import Schedule, Training


class Losing:
    """A transport whose second sum never comes."""

    def __init__(self) -> None:
        self.waits = 0

    def start_sum(self, vector: np.ndarray) -> int:
        return 0

    def wait(self, request: int, what: str) -> None:
        self.waits += 1
        if self.waits == 2:
            raise RankLost()


@pytest.mark.parametrize(("all_or_nothing", "moved"), [(True, 0), (False, PIECE)])
def test_an_average_counts_wholly_or_not_at_all(all_or_nothing: bool, moved: int) -> None:
    """Without that, what came first has moved the centre already."""
    theta = np.zeros(PIECE + 100, np.float32)
    vectors = {"theta": theta, "velocity": np.zeros_like(theta)}
    rule = BlockMomentum(momentum=0.0).averaging(theta, vectors, 2, plain)
    rule.local.x[:] = 2.0
    centre = CommonCentre(Losing(), rule, vectors, 2, all_or_nothing)  # type: ignore[arg-type]
    centre.start(0.1, 0)
    with pytest.raises(RankLost):
        centre.end()
    assert np.count_nonzero(theta) == moved


def serving(monkeypatch: pytest.MonkeyPatch, whole_moves: bool, claimed: tuple[list[Work], ...] = ()) -> ServingCentre:
    """The master's face, of two workers whose moves are all ones."""

    def receive(self: object, sender: int, told: Move, out: np.ndarray, what: str) -> None:
        out[:] = 1.0

    monkeypatch.setattr(by_messages.Vectors, "receive", receive)
    monkeypatch.setattr(by_messages.TO_WORKER, "post", lambda transport, to, message: posted.append((to, message)))
    posted.clear()
    source = Source(Queue(100, 100), Schedule(Training(minibatch=4), [], 100), 3)
    transport = Losing()
    theta = np.zeros(3 * BLOCK, np.float32)
    return ServingCentre(transport, [1, 2], theta, source, CPU, claimed, whole_moves)  # type: ignore[arg-type]


posted: list[tuple[int, object]] = []


@pytest.mark.parametrize("whole_moves", [True, False])
def test_a_move_counts_wholly_or_not_at_all(monkeypatch: pytest.MonkeyPatch, whole_moves: bool) -> None:
    centre = serving(monkeypatch, whole_moves)
    assert len(centre.pieces) > 2
    for number in range(len(centre.pieces) - 1):
        centre.handle(1, Move(0, 0))
        assert np.count_nonzero(centre.theta) == (0 if whole_moves else centre.pieces[number].stop)
    centre.handle(2, Move(0, 0))  # another's, meanwhile
    centre.handle(1, Move(0, 0))
    if whole_moves:
        assert (centre.theta == 1.0).all()
    assert posted == [(1, Added())]


def moved(centre: ServingCentre, worker: int, samples: int) -> None:
    """A worker reports samples, and their move comes."""
    centre.trained(worker, samples)
    for _ in centre.pieces:
        centre.handle(worker, Move(0, 0))


def test_what_was_claimed_and_is_in_no_move_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """By worker, in the order in which it trains; what is reported counts with the move that comes next, once whole."""
    centre = serving(monkeypatch, True)
    for worker in (1, 2):
        centre._claimed[worker] += centre.claim()[0]
    left = [Work(0, 6, 2, 4), Work(0, 8, 4, 4), *(Work(0, at, 4, 4) for at in (12, 16, 20))]
    moved(centre, 1, 6)
    assert centre.untrained() == left
    centre.trained(1, 6)
    centre.handle(1, Move(0, 0))
    assert centre.untrained() == left
    for _ in centre.pieces[1:]:
        centre.handle(1, Move(0, 0))
    moved(centre, 2, 12)
    assert centre.untrained() == []


def test_what_workers_had_before_a_resume_is_trained_on_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of it says nothing of what was claimed since."""
    centre = serving(monkeypatch, True, ([Work(0, 96, 4, 4)], []))
    centre._claimed[1] += centre.claim()[0]
    moved(centre, 1, 5)
    assert centre.untrained() == [Work(0, 1, 3, 4), Work(0, 4, 4, 4), Work(0, 8, 4, 4)]
