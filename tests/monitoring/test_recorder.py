"""What a rank's recorder keeps of the time that its stopwatch tells."""

from collections.abc import Iterator
from math import inf

import pytest

from mpitrain.monitoring.recorder import FirstAndLast, TimeRecorder
from mpitrain.stopwatch import Activity, Stopwatch


class Hands:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Iterator[Hands]:
    yield Hands()


def told(recorder: TimeRecorder) -> list[tuple[str, float, float, float]]:
    """Kind, begin, end and looking of what was kept."""
    recorder.close()
    return [(each.kind, each.began, each.ended, each.looking) for each in recorder.stretches]


def test_a_wait_is_one_stretch_from_its_first_sleep_to_its_last(clock: Hands) -> None:
    """1 s of rest, sleeps of 2 and 4 s with 1 s of looking between them, 8 s of rest, another wait of 16 s."""
    watch, recorder = Stopwatch(clock), TimeRecorder(clock, 10)
    watch.listener = recorder
    first, second = Activity("an answer", (3,), pause=inf), Activity("an answer", (3,), pause=inf)
    for rest, sleep, about in ((1, 2, first), (1, 4, first), (8, 16, second)):
        clock.now += rest
        with watch.on("waiting", about):
            clock.now += sleep
    assert watch.read() == {**dict.fromkeys(watch.seconds, 0.0), "waiting": 22.0, "rest": 10.0}
    assert told(recorder) == [
        ("rest", 100, 101, 0),
        ("waiting", 101, 108, 1),
        ("rest", 108, 116, 0),
        ("waiting", 116, 132, 0),
    ]


def test_work_within_work_is_a_stretch_of_its_own(clock: Hands) -> None:
    """2 s of computing, a checkpoint of 1 + 1 s around a wait of 4 s, nothing, 8 s of computing."""
    watch, recorder = Stopwatch(clock), TimeRecorder(clock, 10)
    watch.listener = recorder
    with watch.on("computing"):
        clock.now += 2
        with watch.on("rest", Activity("a checkpoint")):
            clock.now += 1
            with watch.on("waiting", Activity("a piece", pause=inf)):
                clock.now += 4
            clock.now += 1
        clock.now += 8
    watch.read()
    kinds = [("computing", 2), ("rest", 1), ("waiting", 4), ("rest", 1), ("computing", 8)]
    assert [(kind, ended - began) for kind, began, ended, _ in told(recorder)] == kinds


def test_blocks_of_an_update_are_one_unless_something_lasts_between_them(clock: Hands) -> None:
    """Within computing: blocks of 2 s, with 1 s between them, once 4 s, and once a wait."""
    watch, recorder, update = Stopwatch(clock), TimeRecorder(clock, 10), Activity("an update", pause=1.5)
    watch.listener = recorder
    with watch.on("computing"):
        for pause in (1, 1, 4, 1):
            with watch.about(update):
                clock.now += 2
            clock.now += pause
        with watch.on("waiting", Activity("it", pause=inf)):
            clock.now += 1
        with watch.about(update):
            clock.now += 2
        clock.now += 1
        with watch.about(update):
            clock.now += 2
    assert watch.read()["computing"] == 20.0
    recorder.close()
    assert [(each.about and each.about.what, each.ended - each.began, each.looking) for each in recorder.stretches] == [
        ("an update", 8, 0),
        (None, 4, 0),
        ("an update", 2, 0),
        (None, 1, 0),
        ("it", 1, 0),
        ("an update", 5, 0),
    ]


def test_the_first_and_the_last_are_kept() -> None:
    kept = FirstAndLast[int](5)
    for number in range(4):
        kept.add(number)
    assert list(kept) == [0, 1, 2, 3] and kept.dropped == 0
    for number in range(4, 10):
        kept.add(number)
    assert list(kept) == [0, 1, 7, 8, 9] and kept.dropped == 5
