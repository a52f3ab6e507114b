"""Stages over a training."""

import pytest

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
