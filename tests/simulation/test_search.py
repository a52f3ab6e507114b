"""Some seeds of the search for faults (tests/search), and those that once failed."""

import importlib.util
import json
import re
import sys
import time
from dataclasses import replace
from itertools import chain, count, islice
from math import inf
from pathlib import Path
from typing import Any

import pytest

from mpitrain.checkpoint.draft import Draft
from mpitrain.checkpoint.writer import Saver
from mpitrain.flat import Array
from mpitrain.mpi import Transport
from mpitrain.protocols.messages import Finish
from mpitrain.protocols.server.master import Master
from mpitrain.protocols.server.versioned import Versioned

SEARCH = Path(__file__).resolve().parents[1] / "search"


@pytest.fixture(scope="module")
def search() -> Any:
    """tests/search, a package that lies in none."""
    specification = importlib.util.spec_from_file_location("search", SEARCH / "__init__.py")
    assert specification is not None and specification.loader is not None
    module = sys.modules["search"] = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


#: Of each protocol: the centre's two kinds, the peers, …
PROTOCOLS = {
    "merging": ("asgd", "mdownpour", "adownpour", "mvadownpour"),
    "adding": ("easgd", "eamsgd", "downpour", "admm"),
    "synchronous": ("allreduce",),
    "hybrid": ("hybrid",),
    "model-averaging": ("easgd-sync", "eamsgd-sync", "block-momentum"),
    "peers": ("sparse-delta",),
}


@pytest.mark.parametrize("first", ["0", "SPARSE"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_goes_wrong_whatever_comes_when(
    search: Any, tmp_path: Path, pytestconfig: pytest.Config, protocol: str, first: str
) -> None:
    """The first seeds of its algorithms: late messages, stop requests, ranks that freeze or die, resumes.

    Those from SPARSE draw from all that the search can set, and are also compared with a sequential training.
    """
    seeds = count(search.SPARSE if first == "SPARSE" else 0)
    of_it = (seed for seed in seeds if search.name_of(seed) in PROTOCOLS[protocol])
    for seed in islice(of_it, pytestconfig.getoption("--seeds")):
        assert search.fault(seed, tmp_path / str(seed)) == "", search.case(seed)


def test_every_algorithm_comes_up_and_a_seed_is_one_case(search: Any) -> None:
    """The same one each time."""
    assert search.case(7) == search.case(7) != search.case(8)
    assert sorted(chain(*PROTOCOLS.values())) == sorted(map(search.name_of, range(14)))


def test_a_worker_that_stood_by_at_a_stop_begins_at_the_centre(
    search: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its stage comes after the resume, as it does where nothing was stopped."""
    stages = "stages=[{at=0, workers=2}, {at=0.4, minibatch=24, workers=1}, {at=1.1, workers=2}]"
    keys = ("algorithm.name=downpour", search.SMALL, "training.minibatch=64", "algorithm.tau=6", stages)
    order = ("run.exchange=messages", "algorithm.order=round-robin", "training.dtype=float64")
    what = search.Case((*keys, *order), 3, False, 5e-4, 0.82, 0, (), 3, 0.01)
    monkeypatch.setattr(search, "case", lambda seed: what)
    assert search.fault(1, tmp_path) == ""


@pytest.mark.parametrize("stop_at", [inf, 1.2])
@pytest.mark.parametrize(
    ("name", "ranks"), [("msgd", 1), ("easgd", 1), ("mdownpour", 1), ("easgd", 4), ("eamsgd", 2), ("mdownpour", 4)]
)
def test_all_rates_fall_when_the_common_loss_stagnates(
    search: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, ranks: int, stop_at: float
) -> None:
    """As in a sequential training, whether or not it is stopped and resumed."""
    keys = (f"algorithm.name={name}", search.SMALL, "training.minibatch=16", "algorithm.plateau=2")
    order = () if name == "msgd" else ("algorithm.order=round-robin",)
    elastic = ("algorithm.tau=3", "algorithm.rate_decay=0.01") if name.startswith("ea") else ()
    keys += (*order, *elastic, "training.dtype=float64")
    what = search.Case(keys, ranks, False, 5e-4, stop_at, 0, (), ranks, 0.01)
    monkeypatch.setattr(search, "case", lambda seed: what)
    assert search.fault(1, tmp_path) == ""
    assert search.start_of(tmp_path / "run").rate[-1] > 0


@pytest.mark.parametrize("seed", range(5))
def test_a_peer_that_is_a_round_ahead_does_not_fill_the_inbox(search: Any, tmp_path: Path, seed: int) -> None:
    """With a window of one message and messages that are late, the one that was waited for once found no room."""
    keys = ("algorithm.name=sparse-delta", "algorithm.order=round-robin", "algorithm.window=1", search.SMALL)
    what = search.Case((*keys, "training.minibatch=32"), 3, False, 5e-3, inf, 0, (), 3, 0.0)
    assert search.session(what, seed, tmp_path / "run").ended == [0, 0, 0]


@pytest.mark.parametrize("seed", [12, 27])
def test_a_slow_disk_takes_no_simulated_time(
    search: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Threads write checkpoints; how long they take must not decide whether the next one is skipped."""
    search.session(search.case(seed), seed, tmp_path / "fast")
    write = Draft.write

    def slowly(draft: Draft, *of: Any) -> None:
        time.sleep(0.1)
        write(draft, *of)

    monkeypatch.setattr(Draft, "write", slowly)
    search.session(search.case(seed), seed, tmp_path / "slow")
    assert search.checkpoints(tmp_path / "fast") == search.checkpoints(tmp_path / "slow") != []


@pytest.mark.parametrize("seed", [4, 12, 26, 31])
def test_a_seed_is_one_training(search: Any, tmp_path: Path, seed: int) -> None:
    """To the bit, the checkpoint and the virtual second, whether a rank stands still or a stop request comes."""
    first, second = (search.session(search.case(seed), seed, tmp_path / name) for name in ("a", "b"))
    assert (first.ended, first.loaded) == (second.ended, second.loaded)
    assert search.checkpoints(tmp_path / "a") == search.checkpoints(tmp_path / "b") != []
    told = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("a", "b")]
    same = ("parameters_sha256", "seconds", "messages_sent", "exit_reason")
    assert [told[0][key] for key in same] == [told[1][key] for key in same]


def test_other_times_are_another_training(search: Any, tmp_path: Path) -> None:
    """What the two have in common above is not that nothing depends on times."""
    what = replace(search.case(0), stop_at=inf, faults=())
    seconds = []
    for seed in (1, 2):
        search.session(what, seed, tmp_path / str(seed))
        seconds.append(json.loads((tmp_path / str(seed) / "summary.json").read_text())["seconds"])
    assert seconds[0] != seconds[1]


def test_it_finds_a_reader_that_does_not_look_at_the_version_again(
    search: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of Θ that the master has changed meanwhile."""

    def careless(memory: Any, out: Array) -> int:
        seen = memory._version_seen()
        memory._copy(out)
        return int(seen // 2)

    monkeypatch.setattr(Versioned, "read", careless)
    assert re.search(r"a copy of Θ (\d+) is not Θ \1", search.fault(44, tmp_path))


def test_it_finds_a_checkpoint_that_forgets_samples(
    search: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that workers hold when it is written."""
    whole = Saver.copy_state
    monkeypatch.setattr(Saver, "copy_state", lambda saver, state, outstanding: whole(saver, state, []))
    assert "checkpoints [" in search.fault(74, tmp_path)


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
