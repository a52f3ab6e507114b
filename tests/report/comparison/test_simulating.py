"""`compare --simulate`: runs on a cluster that a file describes."""

import json
from pathlib import Path
from shutil import rmtree

import numpy as np
import pytest

from mpitrain.__main__ import main
from mpitrain.data.shards import write_shard
from mpitrain.report.comparison import launching
from mpitrain.report.comparison.matrix import matrix

from .runs import finish

CLUSTER = """
nodes = 4
ranks_per_node = 1
cores_per_node = 1
[gradient]
seconds = 0.5
seconds_per_sample = 0.25
[within_node]
latency = 0.0
bandwidth = 1e15
[between_nodes]
latency = 0.0
bandwidth = 1e15
"""
QUICK = ["--set", "training.epochs=1", "--target-error", "0.99"]
SAME = [*QUICK, "--set", "training.minibatch=32"]


@pytest.fixture(autouse=True)
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them, where the program runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    (tmp_path / "slow.toml").write_text(CLUSTER.replace("0.25", "0.5"))


def test_runs_are_simulated_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand, of 1438 samples: one rank takes 44 minibatches of 32 and one of 30; four share 11 of 128, and have 8 or
    7 of the last 30. Messages take no time."""
    words = ["compare", "allreduce", "--workers", "1,4", "--simulate", "cluster.toml", "--out", "out", *SAME]
    assert main(words) == 0
    assert "(virtual)" in capsys.readouterr().out
    told = json.loads((tmp_path / "out/compare.json").read_text())
    seconds = [row["targets"][0]["seconds"] for row in told["rows"]]
    assert told["simulated"] is True and [row["ranks"] for row in told["rows"]] == [1, 4]
    assert seconds == [[pytest.approx(45 * 0.5 + 1438 * 0.25)], [pytest.approx(12 * 0.5 + (11 * 32 + 8) * 0.25)]]
    assert "All times are virtual: simulated on cluster.toml." in (tmp_path / "out/compare.md").read_text()
    assert "All times are virtual" in (tmp_path / "out/report.html").read_text()
    assert main(["out/cluster.toml" if word == "cluster.toml" else word for word in words]) == 0
    assert capsys.readouterr().out.count("finished before") == 2
    for simulate, said in ((["--simulate", "slow.toml"], "of another cluster"), ([], "are simulated: give --simulate")):
        assert main(["compare", "allreduce", *simulate, "--out", "out", *SAME]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and said in err


def test_real_runs_are_not_mixed_with_simulated_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finish(matrix(["msgd"], [1], [], ["training.epochs=1"], tmp_path / "out")[0], [(10, 0.5)])
    words = ["compare", "msgd", *QUICK, "--out", "out"]
    assert main([*words, "--table"]) == 0 and main([*words, "--simulate", "cluster.toml"]) == 2
    assert "are not simulated" in capsys.readouterr().err and not (tmp_path / "out/cluster.toml").exists()


CODE = """
import numpy as np
def build():
    inputs = np.zeros((64, 4), np.float32) + {}
    return {{part: (inputs, np.arange(64, dtype=np.int32) % 3) for part in ("train", "test")}}
"""


def test_runs_are_not_mixed_with_those_of_edited_code_or_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is named; what is as it was is not refused, nor what begins anew."""
    network = """model.layers=[{ kind = "fully-connected" }]"""
    words = ["compare", "msgd", "--simulate", "cluster.toml", *QUICK, "--set", network]
    own = [*words, "--set", "data.import=data.py:build", "--out", "own"]
    shards = [*words, "--set", "data.path=shards", "--out", "out"]

    def make(value: int) -> None:
        (tmp_path / "data.py").write_text(CODE.format(value))
        arrays = {"images": np.full((64, 4, 4, 1), value, np.uint8), "targets": np.arange(64, dtype=np.int32) % 3}
        for part in ("train", "test"):
            write_shard(tmp_path / "shards" / f"{part}-00000-of-00001.h5", "images", arrays, {"classes": 3})

    (tmp_path / "shards").mkdir()
    make(1)
    for each in (own, shards, own, shards):
        assert main(each) == 0, capsys.readouterr().out
    make(2)
    for each, what in ((own, "data.py (data.import)"), (shards, "data (data.path)")):
        capsys.readouterr()
        assert main(each) == main([*each, "--table"]) == 2
        assert f"msgd-w1-s1: was trained with another {what}; take another --out" in capsys.readouterr().err
    run = tmp_path / "own/runs/msgd-w1-s1"
    (run / "summary.json").unlink()
    rmtree(run / "checkpoints")
    assert main(own) == 0


@pytest.mark.parametrize(
    "words, said",
    [
        (["--simulate", "none.toml"], "none.toml: No such file"),
        (["--simulate", "none"], "none"),
        (["--simulate", "bad.toml"], "bad.toml: nodes: "),
        (["--simulate", "cluster.toml", "--workers", "4"], "--ranks 5: cluster.toml has room for 4"),
        (["--simulate", "cluster.toml", "--launch", "true {ranks}"], "--launch: "),
    ],
)
def test_bad_words_are_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing is left behind."""
    (tmp_path / "bad.toml").write_text(CLUSTER.replace("nodes = 4", "nodes = -4"))
    before = sorted(tmp_path.iterdir())
    assert main(["compare", "easgd", *words, *QUICK, "--out", "out"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and said in err and sorted(tmp_path.iterdir()) == before


def test_the_words_of_a_simulated_run(tmp_path: Path) -> None:
    (element,) = matrix(["easgd"], [4], [2], [], tmp_path / "out")
    words = launching.simulated(element, "strom2015")
    assert words[1:4] == ["-m", "mpitrain", "simulate"] and words[words.index("--cluster") + 1] == "strom2015"
    assert words[words.index("--ranks") + 1] == "5" and words[-2:] == ["--continue", str(element.folder)]
