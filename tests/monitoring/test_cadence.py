"""What is due when, by a clock of its own: evaluations by samples, records by seconds, checkpoints by either."""

import pytest

from mpitrain import config as configuration
from mpitrain.config import RunOptions
from mpitrain.monitoring.cadence import Cadence


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def of_run(run: RunOptions, clock: Clock, samples: int) -> Cadence:
    """As these options say."""
    return Cadence(run.evaluate_every, run.checkpoint_every, run.checkpoint_samples, clock, samples)


def cadence(clock: Clock, *settings: str) -> Cadence:
    """Of epochs of 10 samples."""
    return of_run(configuration.load(None, list(settings)).run, clock, 10)


@pytest.mark.parametrize(
    ("every", "trained", "due"), [(0.5, 4, False), (0.5, 5, True), (2.0, 19, False), (0.0, 99, False)]
)
def test_an_evaluation_is_due_after_so_many_epochs(every: float, trained: int, due: bool) -> None:
    """Or none before the end."""
    assert cadence(Clock(), f"run.evaluate_every={every}").evaluation_due(trained) is due


def test_none_is_due_twice_where_an_epochs_tenth_is_no_float() -> None:
    """After 90187 = 5 · 18037.4 samples of 180374, the fifth is over: the next one comes after 108224.4."""
    run = configuration.load(None, ["run.evaluate_every=0.1"]).run
    five = of_run(run, Clock(), 180_374)
    assert five.evaluation_due(90_187)
    five.evaluating(90_187)
    assert not five.evaluation_due(90_187) and not five.evaluation_due(108_224) and five.evaluation_due(108_225)


def test_one_that_falls_on_a_sample_is_due_with_it() -> None:
    """Although 5 · (0.1 · 1438) is not 719, but a little more."""
    plan = of_run(configuration.load(None, ["run.evaluate_every=0.1"]).run, Clock(), 1438)
    for tenth in range(1, 50):
        due = -(-1438 * tenth // 10)
        assert not plan.evaluation_due(due - 1) and plan.evaluation_due(due)
        plan.evaluating(due)
        assert not plan.evaluation_due(due)


def test_evaluations_that_come_late_do_not_move_the_next() -> None:
    """They are due at multiples; one that began after two of them stands for both."""
    plan = cadence(Clock(), "run.evaluate_every=1")
    plan.evaluating(23)
    assert next(trained for trained in range(20, 35) if plan.evaluation_due(trained)) == 30


@pytest.mark.parametrize(("evaluated", "due"), [(40, 50), (41, 50), (39, 41), (0, 41)])
def test_an_evaluation_that_was_due_before_a_resume_is_due_there(evaluated: int, due: int) -> None:
    """Unless it has been made."""
    plan = cadence(Clock(), "run.evaluate_every=1")
    plan.start(41, 0.0, evaluated)
    assert next(trained for trained in range(41, 60) if plan.evaluation_due(trained)) == due
    plan.evaluating(due)
    assert next(trained for trained in range(due, 70) if plan.evaluation_due(trained)) == due // 10 * 10 + 10


def test_a_record_is_due_a_second_after_the_last() -> None:
    """However many minibatches there are in it."""
    clock = Clock()
    plan = cadence(clock)
    for passed, due in ((0.75, False), (0.25, True)):
        clock.now += passed
        assert plan.record_due() is due
    plan.recorded()
    assert not plan.record_due()


def test_a_checkpoint_is_due_by_minutes_or_by_samples() -> None:
    """Since the last one, or since the training began: not since the program did."""
    clock = Clock()
    plan = cadence(clock, "run.checkpoint_every=2", "run.checkpoint_samples=30")
    clock.now += 1000
    plan.start(7, 0.0, 0)
    assert not plan.checkpoint_due(36) and plan.checkpoint_due(37)
    clock.now += 119
    assert not plan.checkpoint_due(7)
    clock.now += 1
    assert plan.checkpoint_due(7)
    plan.saved(37, clock.now)
    assert not plan.checkpoint_due(66) and plan.checkpoint_due(67)


def test_no_checkpoint_is_due_where_none_is_asked_for() -> None:
    """Then the last one alone is made."""
    clock = Clock()
    plan = cadence(clock, "run.checkpoint_every=0", "run.checkpoint_samples=0")
    clock.now += 1e6
    assert not plan.checkpoint_due(10**9)


def test_seconds_of_training_go_on_from_a_checkpoint() -> None:
    """What lies between the starts, and before the training begins, is none."""
    clock = Clock()
    plan = cadence(clock)
    clock.now += 9
    plan.start(20, 30.0, 20)
    clock.now += 4
    assert plan.seconds == 34.0 and plan.seconds_before == 30.0


@pytest.mark.parametrize(("every", "window"), [(0.25, 2), (1.0, 10), (3.0, 10), (0.0, 10), (0.01, 1)])
def test_an_evaluation_s_loss_is_over_what_lies_between_two(every: float, window: int) -> None:
    """At most an epoch, at least a sample."""
    assert cadence(Clock(), f"run.evaluate_every={every}").loss_window == window
