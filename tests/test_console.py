"""What is printed arrives as it was given."""

import pytest

from mpitrain.console import open_console


def test_no_text_becomes_an_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    """A command to copy names the folder that there is."""
    open_console(live=False).print("--resume runs/a:key:b", markup=False)
    assert capsys.readouterr().out == "--resume runs/a:key:b\n"
