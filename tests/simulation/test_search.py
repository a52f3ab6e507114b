"""Some seeds of the search for faults (tests/search.py), and those that once failed."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from mpitrain.mpi import Transport
from mpitrain.protocols.centre.master import Master
from mpitrain.protocols.messages import Finish

SEARCH = Path(__file__).resolve().parents[1] / "search.py"


@pytest.fixture(scope="module")
def search() -> Any:
    """tests/search.py, which is no package's."""
    specification = importlib.util.spec_from_file_location("search", SEARCH)
    assert specification is not None and specification.loader is not None
    module = sys.modules["search"] = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", range(28))
def test_nothing_goes_wrong_whatever_comes_when(search: Any, tmp_path: Path, seed: int) -> None:
    """Two seeds for each algorithm."""
    assert search.fault(seed, tmp_path / "run") == ""


def test_a_seed_names_its_case(search: Any) -> None:
    """The same one each time; all algorithms come up."""
    assert search.case(7) == search.case(7) != search.case(8)
    assert len({next(key for key in search.case(seed).keys if "name" in key) for seed in range(14)}) == 14


def test_a_worker_that_has_finished_is_not_told_to_finish(
    session_of: Any, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have left: a stop request that came late once left a message behind."""
    told: list[int] = []
    master = Master(session_of(transport, "algorithm.name=asgd"), None, [1, 2, 3])  # type: ignore[arg-type]
    monkeypatch.setattr(master, "tell", lambda worker, message: told.append(worker) or message == Finish())
    monkeypatch.setattr(master, "centre", type("Nothing", (), {"serve": lambda self: False})())
    master.finished, master.session.stop.flag = {2}, True
    master.turn()
    master.turn()
    assert told == [1, 3]
