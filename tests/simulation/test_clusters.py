"""The papers' clusters, by name."""

import json
import tomllib
from pathlib import Path

import pytest

from mpitrain.__main__ import main
from mpitrain.api.clusters import find, names
from mpitrain.models import presets
from mpitrain.models.network import build
from mpitrain.simulation import cluster

#: By name: nodes, and ranks on each.
PAPERS = {
    "chan2014": (6, 1),
    "easgd2015": (5, 4),
    "krizhevsky2014": (2, 4),
    "strom2015": (80, 1),
    "zhang2013": (5, 1),
}


def test_the_names() -> None:
    assert names() == sorted(PAPERS)


@pytest.mark.parametrize("name", PAPERS)
def test_one_rank_trains_for_as_long_as_the_file_says(tmp_path: Path, name: str) -> None:
    """1438 samples of the digits in 6 minibatches, by its network's multiply-adds; no other rank, no message."""
    described = cluster.read(find(name))
    assert (described.nodes, described.ranks_per_node) == PAPERS[name]
    gradient = described.gradient
    alone = _seconds(tmp_path, name, 1, "sgd")
    assert alone == pytest.approx(6 * gradient.seconds + 1438 * _per_sample(described))


@pytest.mark.parametrize("name", PAPERS)
def test_two_ranks_need_half_as_long_and_their_messages(tmp_path: Path, name: str) -> None:
    """Three minibatches each, of 1438 samples at most, and no time for messages that 1 MB would not explain."""
    each = _per_sample(cluster.read(find(name)))
    half, slowest = 719 * each, 3 * 256 * each
    together = _seconds(tmp_path, name, 2, "allreduce")
    assert half < together < slowest + 0.01 + 1e6 / 1.25e8


def _per_sample(described: cluster.Cluster) -> float:
    """Seconds of a sample of the network of `_seconds`."""
    assert described.measured is not None
    work = build("digits-cnn", (8, 8, 1), 10, width=0.1).multiply_adds
    return described.gradient.seconds_per_sample * work / described.measured.multiply_adds


def _seconds(folder: Path, name: str, ranks: int, algorithm: str) -> float:
    """Virtual seconds of an epoch of the digits by a network of 2,000 weights, in minibatches of 256."""
    keys = (f"algorithm.name={algorithm}", "training.epochs=1", "training.minibatch=256", "model.width=0.1")
    words = ["simulate", "--cluster", name, f"--ranks={ranks}", "--out", str(folder / "run")]
    assert main([*words, *(f"--set={key}" for key in (*keys, "run.threads=1"))]) == 0
    return float(json.loads((folder / "run" / "summary.json").read_text())["seconds"])


def test_the_papers_own_figures() -> None:
    """Table 2 of Strom; Krizhevsky's 98.05 hours for 90 epochs of 1.2 million images; the 195.1 minutes of Zhang's
    Table 1, of which 4 iterations are worth 26.2 of 134.0."""
    per_sample = {name: cluster.read(find(name)).gradient.seconds_per_sample for name in PAPERS}
    assert per_sample["strom2015"] == 1 / 10_000
    assert per_sample["krizhevsky2014"] * 90 * 1.2e6 / 3600 == pytest.approx(98.05, rel=2e-3)
    iterations = 4 * (195.1 - 61.1) / (87.3 - 61.1)
    assert per_sample["zhang2013"] * 10 * 3600 * 100 * iterations / 60 == pytest.approx(195.1, rel=2e-3)


def test_each_names_the_network_of_its_gradients() -> None:
    """The preset of that name, at its own inputs and classes."""
    for name in PAPERS:
        told = cluster.read(find(name)).measured
        assert told is not None
        known = presets.PRESETS[told.name]
        network = build(told.name, known.inputs, known.classes)
        assert (told.parameters, told.multiply_adds) == (network.layout.size, network.multiply_adds)


def test_every_value_has_its_source() -> None:
    """In a comment on its line or above it, at least once a table."""
    for name in PAPERS:
        text = find(name).read_text()
        for block in text.split("\n\n"):
            assert "#" in block, (name, block)
        assert set(tomllib.loads(text)) >= {"nodes", "gradient", "within_node", "between_nodes"}


@pytest.mark.parametrize("word", ["zang2013", "strom"])
def test_an_unknown_name_is_one_line(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "--cluster", word]) == 2
    said = capsys.readouterr().err
    known = "chan2014, easgd2015, krizhevsky2014, strom2015, zhang2013"
    assert said == f"mpitrain: --cluster {word}: neither a file nor one of {known}\n"


def test_a_path_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one without a suffix, and one of a name's letters in a folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").touch()
    assert find("mine") == Path("mine")
    assert find("./strom2015") == Path("strom2015")
    assert find("strom2015").parent != Path()
