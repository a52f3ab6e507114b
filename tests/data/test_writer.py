"""The shard writer: pieces of limited size, and scripts that are interrupted and run again."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.data.check import check
from mpitrain.data.corpus import Corpus
from mpitrain.data.normalising import STATISTICS
from mpitrain.data.shards import folder_parts, set_attributes
from mpitrain.data.writer import ShardWriter
from mpitrain.errors import BadInput
from mpitrain.sampling.batch import Batch

from .alone import read_shard

PAGE = Path(__file__).resolve().parents[2] / "docs/shards.md"
UTTERANCES = [np.full((length, 2), length, np.float32) for length in (3, 1, 4, 1, 5, 9, 2, 6)]


def _writer(folder: Path, source: str = "test") -> ShardWriter:
    return ShardWriter(folder, "train", "frames", {"classes": 10, "source": source}, limit=8 * 8)


def _add(writer: ShardWriter, utterances: list[np.ndarray]) -> None:
    for features in utterances:
        writer.add(features, features[:, 0].astype(np.int32))


def _content(folder: Path) -> list[tuple[list[int], list[int]]]:
    shards = [read_shard(path).arrays for path in folder_parts(folder)["train"]]
    return [(shard["utterances"].tolist(), shard["targets"].tolist()) for shard in shards]


def test_shards_hold_whole_utterances_up_to_the_limit(tmp_path: Path) -> None:
    writer = _writer(tmp_path)
    _add(writer, UTTERANCES)
    assert writer.finish() == 4
    assert [offsets for offsets, _ in _content(tmp_path)] == [[0, 3, 4, 8], [0, 1, 6], [0, 9], [0, 2, 8]]


def test_an_interrupted_writer_leaves_no_part_and_nothing_for_the_next_one(tmp_path: Path) -> None:
    """The next one may write fewer and other samples."""
    _add(_writer(tmp_path), UTTERANCES)
    assert len(list(tmp_path.glob(".train-*.h5"))) == 3
    (tmp_path / ".writing-1-.train-00002.h5").touch()
    with pytest.raises(BadInput, match="holds no shards"):
        folder_parts(tmp_path)
    writer = _writer(tmp_path)
    _add(writer, UTTERANCES[5:])
    assert writer.finish() == 2
    assert [offsets for offsets, _ in _content(tmp_path)] == [[0, 9], [0, 2, 8]]
    assert not list(tmp_path.glob(".*"))


#: Runs a script in one child process after the other, each in a folder: it kills itself before its n-th event, such as
#: a file that is opened or renamed in `shards`. `points` lists folders, each with the events at which it is killed.
DRIVER = """
import json, os, sys
from mpitrain.data.writer import ShardWriter

os.fsync = lambda file: None
ShardWriter.__init__.__kwdefaults__["limit"] = 40_000  # bytes: two utterances
script = sys.stdin.read()

def run(folder, kill_at):
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    events = [0]
    def count(name, given):
        if name in ("open", "os.rename", "os.remove", "os.mkdir") and "shards" in str(given[0]):
            if events[0] == kill_at:
                os.kill(os.getpid(), 9)
            events[0] += 1
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    sys.addaudithook(count)
    status = 1
    try:
        exec(script, {})
        status = 0
        print(events[0], flush=True)
    finally:
        os._exit(status)

print(json.dumps([[run(folder, at) for at in kills] for folder, kills in json.loads(sys.argv[1])]))
"""


def test_the_documented_script_may_be_killed_anywhere_and_run_again(
    tmp_path: Path, run_command: Callable[..., Any]
) -> None:
    """As it stands there, in shards of two utterances; also killed twice, and run again when all is there."""
    (tmp_path / "driver.py").write_text(DRIVER.replace("sys.stdin.read()", repr(_documented())))

    def drive(points: list[tuple[str, list[int]]]) -> Any:
        ended = run_command([sys.executable, str(tmp_path / "driver.py"), json.dumps(points)], 300)
        assert ended.status == 0, ended.err
        return ended

    events = int(drive([("whole", [-1])]).out.split()[0])
    assert events > 40
    kills = list(range(0, events, 4))
    points = [(f"killed-{at}", [at, min(at + 2, events - 1), -1, -1]) for at in kills]
    statuses = json.loads(drive(points).out.splitlines()[-1])
    assert [each[0] for each in statuses] == [-9] * len(kills)
    assert [each[2:] for each in statuses] == [[0, 0]] * len(kills)
    wanted = _files(tmp_path / "whole")
    assert len(wanted) == 13
    for folder, _ in points:
        assert _files(tmp_path / folder) == wanted, folder
    check(tmp_path / points[-1][0] / "shards" / "own")
    keys = Corpus(tmp_path / "whole/shards/own", "train").keys
    assert keys == [f"train-{number:03d}" for number in range(20)]


def _documented() -> str:
    return PAGE.read_text().split("```python\n")[1].split("```")[0]


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_utterances_keep_their_names(tmp_path: Path) -> None:
    """Over several shards, also after an interruption; all have one, or none, and images never."""
    _add_named(_writer(tmp_path), 5)
    writer = _writer(tmp_path)
    _add_named(writer, len(UTTERANCES))
    writer.finish()
    assert Corpus(tmp_path, "train").keys == [f"süd-{number}" for number in range(len(UTTERANCES))]
    half = ShardWriter(tmp_path, "dev", "frames", {"classes": 10})
    half.add(UTTERANCES[0], np.zeros(3, np.int32), key="one")
    half.add(UTTERANCES[0], np.zeros(3, np.int32))
    with pytest.raises(BadInput, match="keys must name each of 2 utterances"):
        half.finish()
    with pytest.raises(BadInput, match="images have no speakers or keys"):
        images = ShardWriter(tmp_path, "test", "images", {"classes": 10})
        images.add(np.zeros((1, 4, 4, 3), np.uint8), np.zeros(1, np.int32), key="one")


def _add_named(writer: ShardWriter, stop: int) -> None:
    for number in range(stop):
        features = UTTERANCES[number]
        writer.add(features, features[:, 0].astype(np.int32), key=f"süd-{number}")


def test_the_documented_example_makes_shards_that_can_be_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it stands there."""
    monkeypatch.chdir(tmp_path)
    exec(_documented(), {})
    assert list(folder_parts(Path("shards/own"))) == ["train", "test"]
    corpus = Corpus(Path("shards/own"), "test", context=[5, 5])
    assert corpus.shape == (11, 40) and corpus.keys is not None and corpus.keys[0] == "test-000"


def test_a_complete_part_stays_what_it_is(tmp_path: Path) -> None:
    """The same samples again change nothing; others are refused, be they fewer, more, or of another description."""
    with pytest.raises(BadInput, match="no samples"):
        _writer(tmp_path).finish()
    writer = _writer(tmp_path)
    _add(writer, UTTERANCES)
    writer.finish()
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    writer = _writer(tmp_path)
    _add(writer, UTTERANCES)
    assert writer.finish() == 4
    with pytest.raises(BadInput, match=r"train-00000-of-00004\.h5: complete, with another source; name another folder"):
        _writer(tmp_path, "elsewhere")
    changed = [*UTTERANCES[:-1], UTTERANCES[-1] + 1]
    for others in (UTTERANCES[:-2], UTTERANCES[:-1], [*UTTERANCES, UTTERANCES[0]], changed, UTTERANCES[1:]):
        writer = _writer(tmp_path)
        with pytest.raises(BadInput, match=r"of-00004\.h5: complete, with other samples; name another folder, or del"):
            _finish(writer, others)
        assert before == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.glob("[!.]*")}


def test_memory_that_is_filled_anew_is_copied(tmp_path: Path) -> None:
    writer, features, targets = _writer(tmp_path), np.empty((2, 2), np.float32), np.empty(2, np.int32)
    for number in range(4):
        features[:], targets[:] = number, number
        writer.add(features, targets)
    writer.finish()
    assert Corpus(tmp_path, "train").targets.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert read_shard(folder_parts(tmp_path)["train"][0]).arrays["features"][:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_each_utterance_has_as_many_targets_as_frames(tmp_path: Path) -> None:
    """Also where the next one would make up for it."""
    writer = _writer(tmp_path)
    with pytest.raises(BadInput, match=r"part train: frames \[5, 2\] with targets \[4\], which differ in their number"):
        writer.add(np.zeros((5, 2), np.float32), np.zeros(4, np.int32))
    writer.add(np.zeros((4, 2), np.float32), np.zeros(4, np.int32))
    assert writer.finish() == 1


@pytest.mark.parametrize("limit", [10, 1 << 20])
def test_all_samples_have_one_shape(tmp_path: Path, limit: int) -> None:
    writer = ShardWriter(tmp_path, "train", "frames", {"classes": 3}, limit=limit)
    writer.add(np.ones((2, 4), np.float32), np.zeros(2, np.int32))
    with pytest.raises(BadInput, match=r"part train: frames \[2, 5\]; those before are \[4\] each"):
        writer.add(np.ones((2, 5), np.float32), np.zeros(2, np.int32))


@pytest.mark.parametrize("value", [{"bins": 40}, ["a", "b"], None])
def test_attributes_are_texts_or_numbers(tmp_path: Path, value: Any) -> None:
    with pytest.raises(BadInput, match=r"attribute preparation = .*: expected a text, a number or numbers"):
        ShardWriter(str(tmp_path), "train", "frames", {"classes": 3, "preparation": value})  # type: ignore[arg-type]


def _finish(writer: ShardWriter, utterances: list[np.ndarray]) -> None:
    _add(writer, utterances)
    writer.finish()


def _attributes(folder: Path, part: str) -> list[dict[str, Any]]:
    return [read_shard(path).attributes for path in folder_parts(folder)[part]]


def test_a_training_part_has_the_statistics_by_which_it_is_normalised(tmp_path: Path) -> None:
    """Each of its shards has the mean and deviation of the whole part. A test part has none: it is normalised by those
    of the training part."""
    frames = np.concatenate(UTTERANCES).astype(np.float64)
    for part in ("train", "test"):
        writer = ShardWriter(tmp_path, part, "frames", {"classes": 10}, limit=8 * 8)
        _finish(writer, UTTERANCES)
    for found in _attributes(tmp_path, "train"):
        assert np.allclose(found["mean"], frames.mean(0)) and np.allclose(found["standard_deviation"], frames.std(0))
        assert not any(name.startswith("moments") for name in found)
    assert not any("mean" in found for found in _attributes(tmp_path, "test"))
    corpus = Corpus(tmp_path, "train")
    batch = Batch(np.empty((corpus.samples, *corpus.shape), np.float32), np.empty(corpus.samples, np.int32))
    inputs = corpus.gather(np.arange(corpus.samples), batch).inputs
    assert abs(inputs.mean()) < 1e-6 and abs(inputs.std() - 1) < 1e-6


def test_features_of_any_scale_are_normalised_and_constants_are_not(tmp_path: Path) -> None:
    """Such as currents in amperes, or a small change of a large number; what is not constant elsewhere stays small."""
    noise = np.random.default_rng(1).normal(size=(1000, 6))
    frames = (noise * [1e-9, 1, 0, 0, 1e-25, 1e20] + [0, 1e6, 1e6 / 3, 0, 0, 0]).astype(np.float32)
    writer = ShardWriter(tmp_path, "train", "frames", {"classes": 1}, limit=frames.nbytes // 7)
    for own in np.array_split(frames, 50):
        writer.add(own, np.zeros(len(own), np.int32))
    writer.finish()
    (found, *_) = _attributes(tmp_path, "train")
    wanted = np.where([1, 1, 0, 0, 1, 1], frames.astype(np.float64).std(0), 1)
    assert np.allclose(found["standard_deviation"] / wanted, 1, rtol=1e-3)
    corpus = Corpus(tmp_path, "train")
    inputs = corpus.gather(np.arange(corpus.samples), corpus.form.room(corpus.samples, np.float32)).inputs
    assert np.allclose(inputs.std(0), [[1, 1, 0, 0, 1, 1]], atol=1e-2)


def test_features_that_nothing_normalises_are_not_written(tmp_path: Path) -> None:
    """Such as what stands for missing values: their deviation would be refused where the shards are read."""
    writer = ShardWriter(tmp_path, "train", "frames", {"classes": 1})
    writer.add(np.array([[-3.4e38], [1]], np.float32), np.zeros(2, np.int32))
    with pytest.raises(BadInput, match=r"features that are not finite, or beyond ±1e\+30"):
        writer.finish()


def test_pictures_have_a_covariance_too(tmp_path: Path) -> None:
    images = np.random.default_rng(1).integers(256, size=(6, 4, 4, 3)).astype(np.uint8)
    writer = ShardWriter(tmp_path, "train", "images", {"classes": 1}, limit=images[:2].nbytes)
    for own in np.split(images, 3):
        writer.add(own, np.zeros(2, np.int32))
    assert writer.finish() == 3
    pixels = images.reshape(-1, 3).astype(np.float64)
    for found in _attributes(tmp_path, "train"):
        assert np.allclose(found["mean"], pixels.mean(0)) and np.allclose(found["standard_deviation"], pixels.std(0))
        assert np.allclose(found["covariance"], np.cov(pixels.T, bias=True))


def test_statistics_that_were_given_or_were_not_there_stay(tmp_path: Path) -> None:
    """A part that a former version left half named is not given what its other shards lack."""
    given = {"mean": np.float32([1, 2]), "standard_deviation": np.float32([3, 4])}
    _finish(ShardWriter(tmp_path / "given", "train", "frames", {"classes": 10, **given}, limit=8 * 8), UTTERANCES)
    assert [found["mean"].tolist() for found in _attributes(tmp_path / "given", "train")] == [[1, 2]] * 4
    _finish(_writer(tmp_path), UTTERANCES)
    paths = folder_parts(tmp_path)["train"]
    for path in paths:
        set_attributes(path, dict.fromkeys(STATISTICS))
    paths[-1].unlink()
    _finish(_writer(tmp_path), UTTERANCES)
    assert not any("mean" in found for found in _attributes(tmp_path, "train"))
    assert Corpus(tmp_path, "train").samples == 31
