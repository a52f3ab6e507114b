"""What is printed arrives as it was given."""

from collections.abc import Callable
from functools import partial

import pytest
from rich.console import Console

from mpitrain.console import open_console, open_plain


def test_no_text_becomes_an_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    """A command to copy names the folder that there is."""
    open_console(live=False).print("--resume runs/a:key:b", markup=False)
    assert capsys.readouterr().out == "--resume runs/a:key:b\n"


@pytest.mark.parametrize("columns", ["0", "1", ""])
@pytest.mark.parametrize("opened", [open_plain, partial(open_console, live=False)])
def test_lines_are_printed_whatever_the_environment_says_of_columns(
    columns: str, opened: Callable[[], Console], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With COLUMNS=0 rich prints nothing."""
    monkeypatch.setenv("COLUMNS", columns)
    opened().print("28,207 samples a second")
    assert capsys.readouterr().out == "28,207 samples a second\n"
