"""Training across two "nodes": network namespaces with host names of their own, between which no memory is shared."""

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mpitrain.__main__ import main

RANKS = 4
TWOHOSTS = Path(__file__).resolve().parents[2] / "benchmarks" / "twohosts" / "twohosts.py"


def emulation() -> Any:
    """benchmarks/twohosts, which is no package."""
    specification = importlib.util.spec_from_file_location("twohosts", TWOHOSTS)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def link() -> Iterator[Any]:
    """Two hosts and the link between them."""
    twohosts = emulation()
    if why := twohosts.missing():
        pytest.skip(f"two nodes cannot be emulated: {why}")
    try:
        hosts = twohosts.Link("none").__enter__()
    except RuntimeError as error:
        pytest.skip(f"two nodes cannot be emulated: {error}")
    yield hosts
    hosts.__exit__(None, None, None)


@pytest.fixture
def on_two_nodes(link: Any, run_command: Callable[..., Any]) -> Callable[..., Any]:
    """Run `python -m mpitrain ARGUMENTS` on two ranks of each node."""

    def run(*arguments: str) -> Any:
        settings = () if arguments == ("info",) else ("--set", "run.device=cpu")  # vectors travel as on the host
        return run_command(link.launch([sys.executable, "-m", "mpitrain", *arguments, *settings], RANKS), 180)

    return run


def test_ranks_are_grouped_by_node(on_two_nodes: Callable[..., Any]) -> None:
    """Ranks alternate between the nodes; each node counts its own; vectors cannot travel through shared memory."""
    ended = on_two_nodes("info")
    assert ended.status == 0, ended.err
    facts = {line[:18].strip(): line[19:] for line in ended.out.splitlines()}
    assert facts["ranks"] == "4 on 2 nodes" and "shared" not in facts["exchange"]
    places = [facts[f"rank {rank}"].split(" local rank ") for rank in range(RANKS)]
    assert places[0][0] == places[2][0] != places[1][0] == places[3][0]
    assert [place[1][:6] for place in places] == ["0 of 2", "0 of 2", "1 of 2", "1 of 2"]


@pytest.mark.parametrize(
    ("name", "exchanges", "epochs"),
    [
        ("asgd", ("messages", "one-sided"), 4),
        ("easgd", ("messages", "one-sided"), 6),
        ("sparse-delta", ("sparse messages",), 3),
        ("allreduce", ("allreduce",), 3),
    ],
)
def test_the_digits_are_learnt_across_nodes(
    on_two_nodes: Callable[..., Any], tmp_path: Path, name: str, exchanges: tuple[str, ...], epochs: int
) -> None:
    """What the probe has chosen is said at the start and in the summary; a checkpoint is there. Workers
    of a server take turns: what they learn would otherwise depend on what else the machine does."""
    turns = ("algorithm.order=round-robin",) * (name in ("asgd", "easgd"))
    settings = (f"algorithm.name={name}", f"training.epochs={epochs}", "run.evaluate_every=0", *turns)
    ended = on_two_nodes(*(word for each in settings for word in ("--set", each)), "--out", "run")
    assert ended.status == 0, ended.err
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert told["exchange"] in exchanges and told["test_error"] < 0.25 and told["samples"] == epochs * 1438
    assert "2 nodes" in ended.out and ("vectors travel by" in ended.out) == (name in ("asgd", "easgd"))
    assert (tmp_path / "run" / "checkpoints" / f"{told['samples']:012d}" / "manifest.json").exists()


@pytest.mark.parametrize("name", ["asgd", "easgd"])
def test_pulls_are_one_sided_where_that_is_asked_for(
    on_two_nodes: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    """Although this MPI serves them only when the target calls it: the server does, often enough. With the workers in
    turns, so that no chance decides what is learnt: the same bits as by messages."""
    found = {}
    for exchange in ("one-sided", "messages"):
        keys = (f"algorithm.name={name}", "algorithm.order=round-robin", f"run.exchange={exchange}")
        settings = (*keys, "training.epochs=2", "run.evaluate_every=0")
        ended = on_two_nodes(*(word for each in settings for word in ("--set", each)), "--out", exchange)
        assert ended.status == 0, ended.err
        told = json.loads((tmp_path / exchange / "summary.json").read_text())
        assert told["exchange"] == exchange and told["samples"] == 2 * 1438
        found[exchange] = told["parameters_sha256"]
    assert found["one-sided"] == found["messages"]


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("run.exchange=shared", "run.exchange = 'shared': the ranks are on several nodes"),
        ("algorithm.centre=sharded", "algorithm.centre = 'sharded': needs one-sided access, which"),
    ],
)
def test_what_cannot_cross_nodes_is_bad_input(on_two_nodes: Callable[..., Any], key: str, line: str) -> None:
    """One clear line, although all ranks meet it."""
    ended = on_two_nodes("--set", "algorithm.name=easgd", "--set", key, "--out", "run")
    lines = [each for each in ended.err.splitlines() if each.startswith("mpitrain: ")]
    assert ended.status == 2 and len(lines) == 1 and lines[0].startswith(f"mpitrain: {line}"), ended


def test_a_run_on_two_nodes_is_replayed(on_two_nodes: Callable[..., Any], tmp_path: Path) -> None:
    """To the bit, with teams of the nodes that it had, in one process on this one."""
    keys = ("algorithm.name=sparse-delta", "run.team=node", "training.epochs=1", "run.record_order=true")
    ended = on_two_nodes(*(word for key in keys for word in ("--set", key)), "--out", "run")
    assert ended.status == 0, ended.err
    assert main(["simulate", "--replay", str(tmp_path / "run"), "--out", str(tmp_path / "again")]) == 0
    run, again = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("run", "again"))
    assert run["parameters_sha256"] == again["parameters_sha256"]
