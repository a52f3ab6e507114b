"""Stages over a training."""

from math import pi

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpitrain import config as configuration
from mpitrain.errors import BadInput
from mpitrain.sampling.stages import Schedule


def schedule(stages: list[dict[str, object]], samples: int = 600, hybrid: bool = False) -> Schedule:
    """Ten epochs at 256 and 0.008."""
    training = {"epochs": 10.0, "minibatch": 256, "learning_rate": 0.008}
    algorithm = {"name": "hybrid" if hybrid else "asgd"}
    table = {"training": training, "stages": stages, "algorithm": algorithm}
    return configuration.resolve(table).schedule(samples)


def test_stroms_table_1() -> None:
    """A first sixth of an epoch with a smaller minibatch and ten nodes; the rate halves each epoch from the second."""
    plan = schedule(
        [
            {"at": 0, "workers": 10},
            {"at": 1 / 6, "minibatch": 512},
            {"at": 1, "minibatch": 1024, "workers": 80, "rate_factor": 0.5},
        ]
    )
    seen = [plan.at(served) for served in (0, 99, 100, 599, 600)]
    assert [s.minibatch for s in seen] == [256, 256, 512, 512, 1024]
    assert [s.workers for s in seen] == [10, 10, 10, 10, 80]
    assert [s.learning_rate for s in seen] == [0.008, 0.008, 0.008, 0.008, 0.004]
    assert plan.most_workers == 80
    assert [plan.among(30).at(served).workers for served in (0, 600)] == [10, 30]


def test_the_largest_rate_is_that_of_a_warm_stage_that_is_trained() -> None:
    """Not that of a stage which another one at the same place replaces, or which comes after the end."""
    stages = [{"at": 0, "learning_rate": 0.004}, {"at": 2, "rate_factor": 1.5}, {"at": 10, "learning_rate": 1.0}]
    training = {"epochs": 10.0, "learning_rate": 0.008, "warmup": 0.5}
    plan = configuration.resolve({"training": training, "stages": stages}).schedule(600)
    assert plan.fastest.learning_rate == pytest.approx(0.006) and plan.at(0).learning_rate < 0.004


def test_a_factor_beside_a_rate_multiplies_it() -> None:
    assert schedule([{"at": 1, "learning_rate": 0.01, "rate_factor": 0.5}]).at(600).learning_rate == 0.005


def test_a_percentage_is_of_the_whole_training() -> None:
    """Krizhevsky's steps of 250^(−1/3) at 25, 50 and 75 %."""
    factor = 250 ** (-1 / 3)
    plan = schedule([{"at": f"{share}%", "rate_factor": factor} for share in (25, 50, 75)])
    assert [plan.at(served).learning_rate for served in (1499, 1500, 3000, 4500)] == pytest.approx(
        [0.008 * factor**k for k in (0, 1, 2, 3)], rel=1e-12
    )


def test_biases_have_a_schedule_of_their_own() -> None:
    """Krizhevsky's: the weights' rate falls by 250 in three steps, that of biases by 10 in one, half way."""
    factor = 250 ** (-1 / 3)
    shares = [(25, 1.0), (50, 0.1), (75, 1.0)]
    plan = schedule(
        [{"at": f"{share}%", "rate_factor": factor, "bias_factor": own} for share, own in shares], hybrid=True
    )
    settings = [plan.at(served) for served in (1499, 1500, 3000, 4500)]
    assert [each.learning_rate * each.bias_scale for each in settings] == pytest.approx([0.008, 0.008, 0.0008, 0.0008])
    plain = schedule([{"at": 1, "rate_factor": factor}, {"at": 2, "learning_rate": 0.5}], hybrid=True)
    assert {each.bias_scale for each in plain.all} == {1.0}
    with pytest.raises(BadInput, match="stages: bias_factor"):
        schedule([{"at": 1, "bias_factor": 0.1}])


def test_no_minibatch_crosses_a_stage() -> None:
    """until_change counts to the next stage, then to the end."""
    plan = schedule([{"at": 0.5, "minibatch": 10}])
    assert [plan.until_change(served) for served in (0, 299, 300, 5999)] == [300, 1, 5700, 1]


@pytest.mark.parametrize("at", ["half", "25", -1.0, "-5%"])
def test_a_stage_that_cannot_be_placed_is_named(at: float | str) -> None:
    """The line names the stage's key."""
    with pytest.raises(BadInput, match=r"stages\[0\]\.at"):
        schedule([{"at": at, "minibatch": 3}])


def rates(*settings: str, samples: int = 1000, ranks: int = 1, **at: int) -> Schedule:
    """Two epochs at a rate of 1 in minibatches of 50."""
    common = ["training.epochs=2", "training.minibatch=50", "training.learning_rate=1"]
    return configuration.load(None, [*common, *settings]).schedule(samples, ranks)


@pytest.mark.parametrize("told", ["0.2", "'10%'", "'4 updates'"])
def test_a_warm_up(told: str) -> None:
    """Of 200 samples, four minibatches: a quarter, a half, three quarters, then what the schedule says."""
    assert [rates(f"training.warmup={told}").at(50 * k).learning_rate for k in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    falling = rates(f"training.warmup={told}", "training.schedule=linear")
    assert [falling.at(served).learning_rate for served in (0, 150, 200, 1100, 2000)] == [0.25, 1, 1, 0.5, 0]


def test_updates_of_several_ranks_are_of_more_samples() -> None:
    plan = rates("training.warmup='4 updates'", "algorithm.name=allreduce", ranks=2)
    assert [plan.at(100 * k).learning_rate for k in range(5)] == [0.25, 0.5, 0.75, 1, 1]


def test_updates_are_of_the_minibatches_of_their_stages() -> None:
    """Of a training with two ranks: five of 20 samples, one of the 10 that are left before the next stage, two of 40;
    and with a single stage, which replaces [training]'s minibatch from the start."""
    stages = "stages=[{at=0, minibatch=10}, {at=0.11, minibatch=20}]"
    plan = rates("training.warmup='8 updates'", "algorithm.name=allreduce", stages, ranks=2)
    served = [0, 20, 40, 60, 80, 100, 110, 150, 190]
    assert [plan.at(place).learning_rate for place in served] == [*(after / 190 for after in served[1:]), 1]
    plan = rates("training.warmup='4 updates'", "stages=[{at=0, minibatch=10}]")
    assert [plan.at(10 * k).learning_rate for k in range(5)] == [0.25, 0.5, 0.75, 1, 1]


def test_an_update_ends_with_its_epoch() -> None:
    """Of 120 samples by two ranks: one of 100 and one of the 20 that are left, in each epoch."""
    plan = rates("training.warmup='3 updates'", "algorithm.name=allreduce", samples=120, ranks=2)
    served = [0, 100, 120, 220, 240]
    assert [plan.at(place).learning_rate for place in served] == [100 / 220, 120 / 220, 1, 1, 1]


def test_updates_of_a_training_without_an_end() -> None:
    """Only the epochs of the warm-up are gone through."""
    settings = ["training.warmup='3 updates'", "training.epochs=1e9", "algorithm.name=allreduce"]
    plan = rates(*settings, samples=120, ranks=2)
    assert plan.at(0).learning_rate == 100 / 220 and plan.at(220).learning_rate == 1


def test_half_a_cosine() -> None:
    plan = rates("algorithm.name=asgd", "training.schedule=cosine")
    found = [plan.at(served).learning_rate for served in (0, 500, 1000, 1500, 2000)]
    assert found == pytest.approx([1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0], abs=1e-12)


def test_half_a_cosine_is_precise_at_the_end_of_a_long_training() -> None:
    """Where 1 − cos cancels: entries of a sparse exchange are divided by the rate."""
    plan = rates("algorithm.name=asgd", "training.schedule=cosine", samples=500_000_000)
    assert plan.at(10**9 - 1).learning_rate == pytest.approx((pi / 2 * 1e-9) ** 2, rel=1e-6, abs=0)


@given(
    st.sampled_from(["constant", "linear", "cosine"]),
    st.floats(0, 0.9),
    st.integers(1, 300),
    st.lists(st.tuples(st.floats(0, 2), st.floats(0.1, 10)), max_size=3),
)
def test_the_rate_is_never_above_the_stages(
    shape: str, warmup: float, minibatch: int, stages: list[tuple[float, float]]
) -> None:
    """It rises, then does not within a stage, is 0 at the end of what falls and nowhere else."""
    tables = [{"at": at, "rate_factor": factor} for at, factor in stages]
    training = {"epochs": 2.0, "minibatch": minibatch, "learning_rate": 1.0}
    under = configuration.resolve({"training": training, "stages": tables, "algorithm": {"name": "sgd"}})
    own = {**training, "schedule": shape, "warmup": warmup}
    table = {"training": own, "stages": tables, "algorithm": {"name": "sgd"}}
    plan, plain = configuration.resolve(table).schedule(1000), under.schedule(1000)
    factors = [plan.factor(served) for served in range(0, 2001, 10)]
    for served, factor in zip(range(0, 2001, 10), factors, strict=True):
        assert plan.at(served).learning_rate == pytest.approx(factor * plain.at(served).learning_rate)
        assert 0 < factor <= 1 or (factor == 0 and served == 2000 and shape != "constant")
    top = factors.index(max(factors))
    assert factors[: top + 1] == sorted(factors[: top + 1])
    assert factors[top:] == sorted(factors[top:], reverse=True)


@pytest.mark.parametrize(
    ("warmup", "line"),
    [
        ("'4 steps'", 'expected epochs, a share such as "5%", or "500 updates"'),
        ("'-1 updates'", "expected epochs"),
        ("-1.0", "Expected `float` >= 0.0"),
        ("'x%'", "expected epochs"),
        ("2.0", "as long as the whole training"),
        ("'40 updates'", "as long as the whole training"),
    ],
)
def test_a_warm_up_that_cannot_be(warmup: str, line: str) -> None:
    with pytest.raises(BadInput, match=rf"training\.warmup.*{line}"):
        rates(f"training.warmup={warmup}")
