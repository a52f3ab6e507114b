"""`info --check`: its advice, and that it measures on any number of ranks."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mpitrain.cli.check import Found, Link, advice

GOOD = Found(
    ranks=4,
    nodes=2,
    ranks_a_node=2,
    cores=4,
    threads=2,
    passive=True,
    gradient=0.5,
    vector=58_000_000,
    sum=0.05,
    within=Link(1e-6, 10e9),
    between=Link(20e-6, 5e9),
    write=1e9,
    read=1e9,
)


def test_a_good_cluster_is_told_what_allreduce_gains() -> None:
    """4 ranks, a sum costs a tenth of a gradient: 4/1.1."""
    (line,) = advice(GOOD)
    assert "4 ranks computes 3.6 times as much as one" in line


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ranks": 1, "between": None, "nodes": 1, "within": None}, "the launcher does not fit this MPI"),
        ({"threads": 4}, "2 ranks of 4 threads share 4 cores"),
        ({"cores": 16}, "a node has 12 idle cores:"),
        ({"sum": 0.5}, "only 2.0 times as much as one, because a sum takes 0.50 s and a gradient 0.50 s"),
        ({"sum": 5.0}, "less than one rank"),
        ({"passive": False}, "one-sided reads only while their target calls MPI"),
        ({"write": 1e6}, "run folder is slow"),
        ({"read": 1e6}, "data are slow"),
    ],
)
def test_what_is_wrong_is_advised(change: dict[str, Any], said: str) -> None:
    assert any(said in line for line in advice(replace(GOOD, **change)))


def test_of_gpus_no_figure_is_made_of_what_cpus_compute() -> None:
    """Nothing is measured on them."""
    (line,) = advice(replace(GOOD, gpu=True))
    assert line.startswith("on GPUs gradients take less time than here") and "mpitrain advise" in line
    assert "0.500 s on CPUs" in dict(GOOD.lines())["a gradient"]


def test_the_period_keeps_the_centres_link_free() -> None:
    """58 MB at 12.5 MB/s take 4.64 s; four workers' vectors of each period fit into τ gradients of 0.5 s at τ = 38."""
    slow = replace(GOOD, sum=10.0, between=Link(1e-3, 12.5e6))
    assert advice(slow)[-2].endswith("algorithm.tau = 38 or more") and "mpitrain advise" in advice(slow)[-1]


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_figure_is_measured(launch: Callable[..., Any], tmp_path: Path, ranks: int) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards/train.h5").write_bytes(bytes(8 << 20))
    ended = launch(ranks, "info", "--check", "--data", "shards", "--out", "runs")
    assert ended.status == 0, ended.err
    lines = dict(line.split(maxsplit=1) for line in ended.out.splitlines() if line)
    assert ended.out.count("MB/s") >= 2 and "advice: " in ended.out and "a gradient" in ended.out and lines
    assert ("GB/s" in ended.out) == (ranks > 1)
    assert list((tmp_path / "runs").iterdir()) == []


def test_small_data_are_not_called_slow(launch: Callable[..., Any], tmp_path: Path) -> None:
    """What is measured of a byte is the time to open its file."""
    (tmp_path / "train.h5").write_bytes(b"0")
    ended = launch(1, "info", "--check", "--data", ".")
    assert ended.status == 0 and "needs --data with at least 8 MiB" in ended.out and "slow to read" not in ended.out


def test_a_run_folder_that_is_a_file_is_one_line(launch: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    ended = launch(1, "info", "--check", "--out", "runs")
    assert ended.status == 2 and ended.err.count("\n") == 1 and ended.err.startswith("mpitrain: --out: runs")


@pytest.mark.parametrize("words", [("--data", "nowhere"), ("--check", "--data", "nowhere")])
def test_bad_options_are_one_line(launch: Callable[..., Any], words: tuple[str, ...]) -> None:
    ended = launch(2, "info", *words)
    lines = [line for line in ended.err.splitlines() if line.startswith("mpitrain: ")]
    assert ended.status == 2 and len(lines) == 1 and "--data" in lines[0]
