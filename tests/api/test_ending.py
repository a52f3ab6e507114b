"""What is said at the end of a training."""

from pathlib import Path

import pytest

from mpitrain.api.ending import next_commands


@pytest.mark.parametrize(
    ("results", "first"),
    [
        ({"test_a_loss": 1.0, "test_loss": 1.0}, "evaluate"),
        ({"dev_loss": 1.0}, "evaluate"),
        ({"train_subset_loss": 1.0}, "report"),  # run.train_subset
        ({}, "report"),
    ],
)
def test_commands_that_do_not_fail(results: dict[str, float], first: str) -> None:
    """Without a part dev or test `evaluate` is refused, as there is nothing to evaluate."""
    commands = next_commands(Path("my run"), results)
    assert commands[0] == f"python -m mpitrain {first} 'my run'"
    assert [command.split()[3] for command in commands[-2:]] == ["report", "export"]
