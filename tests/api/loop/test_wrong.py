"""Wrong use of a loop of one's own on one of several ranks: a line or the user's own traceback, and no hang."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")
LOADED = ("torch._dynamo", "mpitrain.api.loop")
PROGRAM = str(Path(__file__).with_name("wrong.py"))


@pytest.mark.parametrize(
    ("case", "algorithm", "line"),
    [
        ("break", "block-momentum", r"mpitrain: rank 1 left the loop after \d+ batches, and rank 0 did not"),
        ("break late", "block-momentum", "mpitrain: the ranks took 26, 25 batches: one left the loop early"),
        ("more batches", "allreduce", "mpitrain: rank 0 left the loop after 6 batches, and rank 1 did not"),
        ("no backward", "allreduce", "mpitrain: rank 1 called backward less often than the others"),
        (
            "failed backward",
            "allreduce",
            "mpitrain: rank 1: backward ended in an error, so that the",
        ),
        ("further backward", "allreduce", "mpitrain: rank 0 called backward less often than the others"),
        ("break", "sparse-delta", r"mpitrain: rank 1 left the loop after \d+ batches, and rank 0 did not"),
        ("nan", "sparse-delta", "mpitrain: rank 1: the parameters are not finite"),
        ("stopped", "sparse-delta", r"mpitrain: rank \d: waited 2 s for rank 1"),
        ("exception", "sparse-delta", "rank 1: KeyError: 'mine'"),
        ("nan", "easgd-sync", r"mpitrain: rank 1: the parameters are not finite after \d+ batches"),
        ("nan", "allreduce", r"mpitrain: the parameters are not finite after \d+ batches"),
        ("another model", "allreduce", "mpitrain: model: rank 1 has another one than rank 0"),
        ("another seed", "easgd", r"mpitrain: rank 1 called distribute\(.*seed=6, tau=3\), rank 0 .*seed=5"),
        ("exception", "easgd", "rank 1: KeyError: 'mine'"),
        ("learning rate", "allreduce", "mpitrain: rank 1: the learning rate is 0.02, rank 0's 0.1, after 5 batches"),
        (
            "learning rate",
            "block-momentum",
            "mpitrain: rank 1: the learning rate is 0.02, rank 0's 0.1, after 5 batches",
        ),
        ("learning rate", "easgd-sync", "mpitrain: rank 1: the learning rate is 0.02, rank 0's 0.1, after 6 batches"),
        ("exit", "block-momentum", r"mpitrain: rank 1 called sys.exit\(3\), and not all ranks did"),
        ("moved", "easgd", "mpitrain: model: 0.weight has got other memory within the block"),
        ("stopped", "allreduce", r"mpitrain: rank \d: waited 2 s for rank 1 \(.*\); deadline sets the seconds"),
        ("unfrozen", "easgd", "mpitrain: model: 0.bias needs a gradient, and did not at the start"),
        ("unsummed", "allreduce", "mpitrain: optimizer.step: the gradient of 0.weight is this rank's alone"),
        ("added up", "allreduce", "mpitrain: optimizer.step: gradients were only added up"),
        ("mean", "easgd-sync", "mpitrain: rank 1: waited 4 s for ranks.mean, which all ranks call together; deadline"),
        ("save", "easgd", r"mpitrain: rank 1: waited 4 s for ranks\.save, which all ranks call"),
        ("save", "allreduce", r"mpitrain: rank 1: waited 4 s for ranks\.save, which all ranks call"),
        ("save apart", "easgd", r"mpitrain: rank 1 called ranks.save\('rank-1'\), rank 0 ranks.save\('rank-0'\)"),
        (
            "load",
            "allreduce",
            r"mpitrain: rank 1 called ranks.load\('together'\), rank 0 ranks.save\('together'\) after",
        ),
    ],
)
def test_a_fault_on_one_rank(launch: Callable[..., Any], case: str, algorithm: str, line: str) -> None:
    ended = launch(2, case, algorithm, program=(PROGRAM,), deadline=90, cold=case == "stopped")
    assert (ended.status == 3 if case == "exit" else ended.status != 0) and "rank 0: " not in ended.out
    assert re.search(f"^{line}", ended.err, re.MULTILINE), ended.err
    assert ended.status == 2 or case in ("nan", "exception", "exit", "stopped", "mean", "save")
    assert "waited" in line or "waited" not in ended.err, "a second line: ranks that end in different ways"


@pytest.mark.parametrize("algorithm", ["allreduce", "easgd", "sparse-delta"])
def test_all_ranks_exit(launch: Callable[..., Any], algorithm: str) -> None:
    """With the user's status, and without a word."""
    ended = launch(2, "exit together", algorithm, program=(PROGRAM,), deadline=90)
    assert ended.status == 3 and "SystemExit" not in ended.err and "WARN" not in ended.err, ended.err


@pytest.mark.parametrize(
    "call", ["mpitrain.train({'run.deadline': 2})", "mpitrain.distribute(net, sgd, 'easgd', deadline=2).__enter__()"]
)
def test_a_rank_that_fails_before_it_comes(launch: Callable[..., Any], call: str) -> None:
    """The others end the job; it waited for ever, for all to come to MPI_Finalize."""
    lines = (
        "import torch, mpitrain, mpi4py.MPI",
        "net = torch.nn.Linear(1, 1)",
        "sgd = torch.optim.SGD(net.parameters(), 1.0)",
        "mpi4py.MPI.COMM_WORLD.Barrier()",  # the deadline is not for who loads PyTorch last
        "mpi4py.MPI.COMM_WORLD.rank == 1 and {}['mine']",
        call,
    )
    ended = launch(3, program=("-c", "\n".join(lines)), deadline=90)
    assert ended.status != 0 and "KeyError: 'mine'" in ended.err
    assert re.search(r"^mpitrain: rank \d: waited 2 s for rank 1 \(the start of the program\)", ended.err, re.MULTILINE)


def test_bad_input_that_a_program_catches_or_not(launch: Callable[..., Any]) -> None:
    """All ranks may catch it, and go on; what one rank does not catch ends it as it ends several."""
    lines = (
        "import torch, mpitrain",
        "net = torch.nn.Linear(1, 1)",
        "sgd = torch.optim.SGD(net.parameters(), 1.0)",
        "try: mpitrain.distribute(net, sgd, seed=-1).__enter__()",
        "except mpitrain.errors.BadInput: print('caught')",
        "with mpitrain.distribute(net, sgd) as ranks:",
        "    net.double(), next(ranks.share([torch.ones(1, 1)]))",
    )
    for ranks in (1, 2):
        ended = launch(ranks, program=("-c", "\n".join(lines)), deadline=90)
        assert ended.status == 2 and ended.out.count("caught") == ranks, ended.err
        assert ended.err.startswith("mpitrain: model: weight has got other memory") and "Traceback" not in ended.err


def test_samples_where_one_rank_leaves_early(launch: Callable[..., Any], tmp_path: Path) -> None:
    """The summary counts each rank's own: rank 0's 13 batches of an epoch, half of the samples, and rank 1's five."""
    ended = launch(2, "break", "easgd", program=(PROGRAM,), deadline=90)
    assert "mpitrain: warning: the ranks took 26, 10 batches: one left the loop early" in ended.err
    summary = next(tmp_path.glob("runs/*/summary.json")).read_text()
    assert ended.status == 0 and json.loads(summary)["samples"] == 2 * (100 + 5 * 8), summary


@pytest.mark.parametrize("case", ["other part", "other order"])
def test_samples_that_differ(launch: Callable[..., Any], case: str) -> None:
    """A random part or order that is drawn without a seed is said, once for each block."""
    algorithms = ["allreduce", "block-momentum", "easgd", "easgd-sync", "sparse-delta"]
    ended = launch(2, case, *algorithms, program=(PROGRAM,), deadline=90)
    line = "mpitrain: warning: ranks.share: rank 1 read other first batches than rank 0: unless only an augmentation "
    assert ended.status == 0 and ended.err.count(line) == 5, ended.err


def test_steps_that_differ(launch: Callable[..., Any]) -> None:
    """With equal gradients, by what a rank does to its parameters: that is said, and all hold one model at the end."""
    ended = launch(2, "noise", "allreduce", program=(PROGRAM,), deadline=90)
    assert ended.status == 0 and "mpitrain: warning: rank 1: the parameters differ from rank 0's" in ended.err
    assert len({line.split(": ")[1] for line in ended.out.splitlines() if ", rank" in line}) == 1


def test_minutes_of_silence_are_none(launch: Callable[..., Any]) -> None:
    """A rank that computes for longer than the deadline gives heartbeats; all hold one model at the end."""
    algorithms = ["allreduce", "block-momentum", "easgd", "easgd-sync", "sparse-delta"]
    ended = launch(3, "silence", *algorithms, program=(PROGRAM,), deadline=120)
    assert ended.status == 0, ended.err
    told = dict(line.split(": ") for line in ended.out.splitlines() if ", rank" in line)
    for algorithm in algorithms:
        assert len({told[f"{algorithm}, rank {rank}"] for rank in range(3)}) == 1
    assert len(set(told.values())) == len(algorithms)
