"""Who trains on what: every sample once, stages, what is left when ranks stopped at different places."""

from collections import Counter
from collections.abc import Iterable

import pytest

from mpitrain import config as configuration
from mpitrain.protocols.peers.rounds import END, Rounds
from mpitrain.sampling.queue import Queue, Work

SAMPLES = 101


def rounds(ranks: int, *settings: str, position: int = 0, returned: Iterable[Work] = (), tau: int = 1) -> Rounds:
    """Two epochs in minibatches of 7 unless `settings` say otherwise."""
    base = ["algorithm.name=sparse-delta", "training.minibatch=7", "training.epochs=2"]
    schedule = configuration.load(None, [*base, *settings]).schedule(SAMPLES)
    return Rounds(Queue(SAMPLES, schedule.total, position, list(returned)), schedule, ranks, tau)


def turns(r: Rounds, number: int):
    """All turns of one rank."""
    turn = r.turn(number, 0)
    while turn is not None:
        yield turn
        turn = r.turn(number, turn.after, turn.since)


def samples(works: Iterable[Work]) -> Counter:
    """How often each (epoch, position) occurs."""
    return Counter((work.epoch, place) for work in works for place in range(work.start, work.start + work.count))


EVERYTHING = Counter({(epoch, place): 1 for epoch in range(2) for place in range(SAMPLES)})


@pytest.mark.parametrize("tau", [1, 4])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_every_sample_once_an_epoch_whoever_trains(ranks: int, tau: int) -> None:
    """With a minibatch that divides nothing and stages that change it and the number of ranks."""
    stages = (
        f"stages=[{{at=0.3, minibatch=10, workers={max(ranks // 2, 1)}}}, {{at=1.2, minibatch=3, workers={ranks}}}]"
    )
    each = [list(turns(rounds(ranks, stages, tau=tau), number)) for number in range(ranks)]
    assert samples(work for mine in each for turn in mine for work, _ in turn.steps) == EVERYTHING
    counts = [len(list(turns(rounds(ranks, tau=tau), number))) for number in range(ranks)]
    assert max(counts) - min(counts) <= 1


def test_a_rank_trains_since_its_stage() -> None:
    """Ranks of a later stage know at which round it begins; those that train throughout wait for nobody."""
    r = rounds(3, "stages=[{at=0, workers=1}, {at=1, workers=3}]")
    assert all(turn.since == 0 for turn in turns(r, 0))
    late = list(turns(r, 2))
    first = next(turn.place for turn in turns(r, 0) if turn.workers == 3)
    assert late and all(turn.since == first and turn.place >= first for turn in late)


#: The third rank has no turn for an epoch or ever.
LATE, NEVER = ("stages=[{at=0, workers=2}, {at=1, workers=3}]",), ("stages=[{at=0, workers=2}]",)


@pytest.mark.parametrize("settings", [(), LATE, NEVER])
@pytest.mark.parametrize("places", [[0, 0, 0], [50, 21, END], [END, END, END], [63, 21, 42], [49, 35, 35]])
@pytest.mark.parametrize("tau", [1, 2])
def test_what_is_left_is_what_nobody_trained(places: list[int], tau: int, settings: tuple[str, ...]) -> None:
    """Done and left together are everything, once; and the rest can be taken up by another number of ranks.

    What a rank that had no turn has not trained keeps its place: only what lies before the furthest is handed out anew.
    """
    r = rounds(3, *settings, tau=tau)
    places = [min((t.place for t in turns(r, i) if t.place >= place), default=END) for i, place in enumerate(places)]
    trained = [t for i, place in enumerate(places) for t in turns(r, i) if t.place < place]
    done, reached = [work for t in trained for work, _ in t.steps], max((t.after for t in trained), default=0)
    left = r.remaining(places, reached)
    assert left.position == reached
    again = rounds(2, position=left.position, returned=left.returned, tau=tau)
    assert samples([*done, *(work for i in range(2) for t in turns(again, i) for work, _ in t.steps)]) == EVERYTHING
