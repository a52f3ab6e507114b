"""The network in TOML."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "examples/mlp"


def test_the_mlp_learns_the_digits(launch: Callable[..., Any], tmp_path: Path) -> None:
    """In a third of its epochs, not to the last percent."""
    assert "examples/mlp/mlp.toml --out mlp" in (FOLDER / "README.md").read_text()
    ended = launch(3, str(FOLDER / "mlp.toml"), "--set", "training.epochs=10", "--out", "mlp")
    assert ended.status == 0 and "model.layers: 17,226 parameters" in ended.out, ended.err
    assert json.loads((tmp_path / "mlp/summary.json").read_text())["test_error"] < 0.1
