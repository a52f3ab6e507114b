"""benchmarks/papers: a paper's cluster for a small network keeps the paper's proportion."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from mpitrain.simulation import cluster

SMALL = Path(__file__).resolve().parents[2] / "benchmarks" / "papers" / "small.py"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, which is in no package and finds its neighbours by itself."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    specification = importlib.util.spec_from_file_location("small", SMALL)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "small", module)
    specification.loader.exec_module(module)
    return module


def test_gradients_and_vectors_take_as_long_as_the_papers(small: Any, tmp_path: Path) -> None:
    """Strom: 1024 frames at 10,000 a second; 14.6 million weights over 1 Gbit/s, and over ten times that."""
    of = small.Small("strom2015", 14_600_000, 1024, 64, 31_304)
    for faster in (1, 10):
        found = cluster.read(of.write(tmp_path / "cluster.toml", faster))
        assert found.job(1).seconds(0, 64) == pytest.approx(0.1024)
        assert 31_304 * 4 / found.between_nodes.bandwidth == pytest.approx(14.6e6 * 4 / 1.25e8 / faster)
        assert found.between_nodes.latency == 2e-4 and found.nodes == 80
