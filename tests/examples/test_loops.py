"""Training scripts of one's own before and after `mpitrain.distribute`: few lines differ, and both run."""

import re
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")
ROOT = Path(__file__).resolve().parents[2]
BEFORE, AFTER = "train.py", "train_distributed.py"


def lines(folder: str, name: str) -> list[str]:
    return [line for line in (ROOT / "examples" / folder / name).read_text().splitlines() if line.strip()]


@pytest.mark.parametrize("folder", ["resnet", "transformer"])
def test_at_most_five_lines_differ(folder: str) -> None:
    """Changed, added or removed, of at most 120 in all."""
    before, after = lines(folder, BEFORE), lines(folder, AFTER)
    changes = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    count = sum(max(i1 - i0, j1 - j0) for kind, i0, i1, j0, j1 in changes if kind != "equal")
    assert 0 < count <= 5 and len(after) <= 120
    page = (ROOT / "docs" / "loop.md").read_text()
    if folder == "resnet":
        assert all(f"+{line}" in page for line in after if line not in before)
        assert all(f"-{line}" in page for line in before if line not in after)


@pytest.mark.parametrize(
    ("folder", "size", "said"),
    [
        ("resnet", ("--samples", "96", "--epochs", "1", "--width", "2"), ""),
        (
            "transformer",
            ("--epochs", "1", "--width", "8", "--depth", "1", str(ROOT / "README.md")),
            r"held out: \d\.\d+ bits a byte",
        ),
    ],
)
def test_both_run(
    launch: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    folder: str,
    size: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)  # scripts import what stands beside them
    for name, ranks in ((BEFORE, 1), (AFTER, 1), (AFTER, 2)):
        ended = launch(ranks, *size, program=(str(ROOT / "examples" / folder / name),))
        assert ended.status == 0, ended.err
        told = re.findall(said, ended.out) if said else []  # ranks' lines may run into one another
        assert len(told) == (ranks if said else 0) and len(set(told)) <= 1
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 2
    assert folder != "resnet" or (tmp_path / "model.pt").exists()
