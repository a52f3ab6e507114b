"""config.toml and corpus.json of a run: whole, of one checkpoint, and refused when they are not what was written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpitrain.errors import BadInput
from mpitrain.trained.model import load
from tests.faults import Fault, program

#: The program, killed in its 20th minibatch.
KILLED = program(Fault("mpitrain.training.gradients.Learner.gradient", ["exit 9"], call=19))
START = ("--set", "algorithm.name=msgd", "--set", "training.epochs=1", "--set", "run.evaluate_every=0", "--out", "run")


@pytest.fixture
def run(simulated: Callable[..., Any], tmp_path: Path) -> Path:
    """A finished run of one rank."""
    assert simulated(1, *START).status == 0
    return tmp_path / "run"


def resume(*settings: str) -> list[str]:
    """The words that go on with it."""
    return ["--resume", "run", *(word for each in settings for word in ("--set", each))]


def config_of(folder: Path, key: str) -> str:
    """The line of config.toml that sets a key, "" without one."""
    lines = (folder / "config.toml").read_text().splitlines()
    return next((line for line in lines if line.startswith(f"{key} = ")), "")


def content(folder: Path) -> dict[Path, bytes]:
    """All files but the record, and what a killed run leaves to say that the folder is in use."""
    living = ("metrics.jsonl", "in-use.json")
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name not in living}


def test_a_configuration_that_is_not_what_was_written_is_refused(simulated: Callable[..., Any], run: Path) -> None:
    """Status 2, one line that names the file and says how a resumed run is changed; nothing is touched."""
    path = run / "config.toml"
    whole = path.read_text()
    cut, edited = whole[: whole.index("[run]")], whole.replace("epochs = 1.0", "epochs = 9.0", 1)
    for damaged in ("", cut, whole[:-3], edited):
        path.write_text(damaged)
        with pytest.raises(BadInput, match=r"config\.toml: does not match its checksum"):
            load(run)
    for damaged in ("", edited):
        path.write_text(damaged)
        before = content(run)
        ended = simulated(2, *resume("training.epochs=2"))
        assert ended.status == 2 and content(run) == before, damaged
        lines = [line for line in ended.err.splitlines() if line.startswith("mpitrain: ")]
        assert len(lines) == 1 and "run/config.toml" in lines[0] and "--set" in lines[0], ended.err
    (found,) = (run / "checkpoints").glob("0*")
    path.write_bytes((found / "config.toml").read_bytes())  # as the line says
    (run / "corpus.json").write_text((run / "corpus.json").read_text().replace('"classes": 10', '"classes": 11', 1))
    ended = simulated(1, *resume("training.epochs=2"))
    assert ended.status == 2 and "run/corpus.json" in ended.err
    (run / "corpus.json").unlink()
    assert simulated(1, *resume("training.epochs=2")).status == 0


def test_a_changed_configuration_comes_with_the_first_checkpoint(
    simulated: Callable[..., Any], launch: Callable[..., Any], run: Path
) -> None:
    """Not with a resume that trains nothing or is killed; and what a checkpoint was made with is in it."""
    before = content(run)
    ended = simulated(1, *resume("algorithm.name=easgd"))
    assert ended.status == 0 and "nothing left to train (training.epochs = 1)" in ended.out and content(run) == before

    more = resume("algorithm.name=easgd", "training.epochs=2")
    assert launch(1, *more, program=KILLED).status != 0
    assert content(run) == before

    assert simulated(1, *more).status == 0
    first, second = sorted((run / "checkpoints").glob("0*"))
    assert [config_of(folder, "name") for folder in (first, second, run)] == [
        'name = "msgd"',
        'name = "easgd"',
        'name = "easgd"',
    ]
    told = json.loads((run / "summary.json").read_text())
    assert (told["algorithm"], told["samples"]) == ("easgd", 2876)

    # killed between the checkpoint's rename and the one of config.toml
    for name in ("config.toml", "corpus.json"):
        (run / name).write_bytes(before[run / name])
    assert load(run).config.training.epochs == 2.0
    assert simulated(1, *resume("training.epochs=3")).status == 0
    assert config_of(run, "name") == 'name = "easgd"' and config_of(run, "epochs") == "epochs = 3.0"


def goes_on(simulated: Callable[..., Any], folder: Path, ranks: int, algorithm: str, change: str) -> None:
    """A run on as many ranks is trained for an epoch, and for a second one with a changed key."""
    common = ("--set", "run.evaluate_every=0", "--set", "training.epochs=1", "--out", "run")
    assert simulated(ranks, "--set", f"algorithm.name={algorithm}", *common).status == 0
    ended = simulated(ranks, *resume(change, "training.epochs=2"))
    assert ended.status == 0, ended.err
    assert json.loads((folder / "run/summary.json").read_text())["samples"] == 2 * 1438


@pytest.mark.parametrize(("first", "then"), [("easgd-sync", "easgd"), ("easgd", "eamsgd"), ("eamsgd", "easgd-sync")])
def test_another_algorithm_starts_at_the_centre(
    simulated: Callable[..., Any], tmp_path: Path, first: str, then: str
) -> None:
    """On the same ranks, too: what a rank keeps of its own means nothing to another algorithm."""
    goes_on(simulated, tmp_path, 2, first, f"algorithm.name={then}")


@pytest.mark.parametrize(
    ("name", "key"),
    [("admm", "delta=0.5"), ("block-momentum", "top_k=64"), ("sparse-delta", "momentum=0.5")],
)
def test_a_vector_that_a_key_adds_begins_at_0(
    simulated: Callable[..., Any], tmp_path: Path, name: str, key: str
) -> None:
    """A velocity, or what ranks have not sent: the ranks' pieces of the checkpoint do not have it."""
    goes_on(simulated, tmp_path, 3, name, f"algorithm.{key}")


def test_an_average_that_the_checkpoint_lacks_begins_at_its_parameters(
    simulated: Callable[..., Any], run: Path
) -> None:
    """Not at the initial weights, which would weigh in it for ever."""
    before = json.loads((run / "summary.json").read_text())["test_error"]
    assert simulated(1, *resume("algorithm.name=averaged", "training.epochs=1.05")).status == 0
    assert json.loads((run / "summary.json").read_text())["test_error"] < before + 0.1
