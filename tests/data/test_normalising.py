"""Normalisation by corpus, speaker and utterance, in memory and on disk."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.data.corpus import Corpus
from mpitrain.data.normalising import NORMALISING, STATISTICS
from mpitrain.data.shards import set_attributes, write_shard
from mpitrain.data.writer import ShardWriter
from mpitrain.errors import BadInput
from mpitrain.sampling.batch import Batch

from .alone import read_shard

UTTERANCES = [  # (speaker, frames of two features)
    (4, [[1, 10], [3, 10]]),
    (2, [[100, 0]]),
    (4, [[5, 10], [7, 10]]),
    (2, [[102, 4], [104, 8]]),
]
#: Speaker 4 has 1, 3, 5, 7 and always 10; speaker 2 has 100, 102, 104 and 0, 4, 8.
SPEAKERS = {4: ([4, 10], [np.sqrt(5), 1e-4]), 2: ([102, 4], [np.sqrt(8 / 3), np.sqrt(32 / 3)])}


def _write(folder: Path, speakers: bool = True) -> None:
    attributes = {"classes": 1, "mean": np.float32([1, 2]), "standard_deviation": np.float32([2, 4])}
    writer = ShardWriter(folder, "train", "frames", attributes, limit=20)
    for speaker, frames in UTTERANCES:
        inputs = np.array(frames, np.float32)
        writer.add(inputs, np.zeros(len(inputs), np.int32), speaker if speakers else None)
    assert writer.finish() == 4


def _all(corpus: Corpus) -> np.ndarray:
    batch = Batch(np.empty((corpus.samples, *corpus.shape), np.float32), np.empty(corpus.samples, np.int32))
    return corpus.gather(np.arange(corpus.samples), batch).inputs[:, 0]


@pytest.mark.parametrize("memory_limit", [1e9, 0])
def test_a_speaker_has_statistics_of_its_own_in_all_shards(tmp_path: Path, memory_limit: float) -> None:
    _write(tmp_path)
    wanted = [(np.array(frames) - SPEAKERS[who][0]) / SPEAKERS[who][1] for who, frames in UTTERANCES]
    corpus = Corpus(tmp_path, "train", normalise="speaker", memory_limit=memory_limit)
    assert np.allclose(_all(corpus), np.concatenate(wanted), atol=1e-5)


@pytest.mark.parametrize("memory_limit", [1e9, 0])
def test_an_utterance_has_statistics_of_its_own(tmp_path: Path, memory_limit: float) -> None:
    _write(tmp_path, speakers=False)
    wanted = [[-1, 0], [1, 0], [0, 0], [-1, 0], [1, 0], [-1, -1], [1, 1]]
    corpus = Corpus(tmp_path, "train", normalise="utterance", memory_limit=memory_limit)
    assert np.allclose(_all(corpus), wanted, atol=1e-6)


@pytest.mark.parametrize("normalise", ["corpus", "speaker", "utterance"])
@pytest.mark.parametrize("unit", [1e-12, 1e-6, 1e6])
def test_features_of_any_unit_are_normalised(tmp_path: Path, normalise: str, unit: float) -> None:
    writer = ShardWriter(tmp_path, "train", "frames", {"classes": 1})
    rows = np.random.default_rng(1).normal(size=(50, 2)) * [unit, 0] + [3 * unit, 7 * unit]
    writer.add(rows.astype(np.float32), np.zeros(50, np.int32), 0)
    writer.finish()
    found = _all(Corpus(tmp_path, "train", normalise=normalise))
    assert np.allclose(found.mean(axis=0), 0, atol=1e-3) and np.allclose(found.std(axis=0), [1, 0], atol=1e-3)


@pytest.mark.parametrize("memory_limit", [1e9, 0])
@pytest.mark.parametrize(("normalise", "mean", "deviation"), [("corpus", [1, 2], [2, 4]), ("none", 0, 1)])
def test_the_corpus_or_nobody_normalises(
    tmp_path: Path, normalise: str, mean: list[int], deviation: list[int], memory_limit: float
) -> None:
    _write(tmp_path)
    wanted = np.concatenate([(np.array(frames) - mean) / deviation for _, frames in UTTERANCES])
    assert np.array_equal(_all(Corpus(tmp_path, "train", normalise=normalise, memory_limit=memory_limit)), wanted)


def test_speakers_survive_the_shard(tmp_path: Path) -> None:
    _write(tmp_path)
    found = [read_shard(path).arrays["speakers"].tolist() for path in sorted(tmp_path.glob("*.h5"))]
    assert found == [[4], [2], [4], [2]]


def test_what_frames_cannot_have_is_named(tmp_path: Path) -> None:
    _write(tmp_path, speakers=False)
    with pytest.raises(BadInput, match=r"train-00000-of-00004\.h5: names no speakers"):
        Corpus(tmp_path, "train", normalise="speaker")
    for how in ("mean", "unit"):
        with pytest.raises(BadInput, match=rf"data\.normalise = {how}: for pixels"):
            Corpus(tmp_path, "train", normalise=how)


@pytest.mark.parametrize("speakers", [[0], [0, -1], [0, 1, 2]])
def test_speakers_that_do_not_fit_are_refused(tmp_path: Path, speakers: list[int]) -> None:
    arrays = {
        "features": np.zeros((3, 1), np.float32),
        "targets": np.zeros(3, np.int32),
        "utterances": np.array([0, 1, 3]),
        "speakers": np.array(speakers, np.int32),
    }
    with pytest.raises(BadInput, match="speakers must number"):
        write_shard(tmp_path / "train-00000-of-00001.h5", "frames", arrays, {"classes": 1})


@pytest.mark.parametrize(
    ("how", "known", "warned"), [("corpus", False, 1), ("none", False, 0), ("utterance", False, 0), ("corpus", True, 0)]
)
def test_a_training_says_that_nothing_normalises(
    tmp_path: Path, simulated: Callable[..., Any], how: str, known: bool, warned: int
) -> None:
    """Where shards have no statistics and data.normalise asks for them; the training goes on."""
    _write(tmp_path / "shards", speakers=False)
    if not known:
        for path in (tmp_path / "shards").iterdir():
            set_attributes(path, dict.fromkeys(STATISTICS))
    network = 'model.layers=[{kind="fully-connected"}]'
    keys = ("algorithm.name=sgd", "data.path=shards", f"data.normalise={how}", network, "training.epochs=1")
    ended = simulated(1, *(word for key in keys for word in ("--set", key)), "--out", "run")
    assert ended.status == 0, ended.err
    assert ended.out.count(f"warning: data.normalise = '{how}': has no effect, the shards have no mean") == warned


@pytest.mark.parametrize("then", [{"mean": [9.0] * 3, "standard_deviation": [9.0] * 3}, dict.fromkeys(NORMALISING)])
def test_a_resumed_run_goes_on_with_the_statistics_that_it_began_with(
    tmp_path: Path, simulated: Callable[..., Any], then: dict[str, Any]
) -> None:
    """To the bits of a run without a break, whatever the shards say by then."""
    pixels, targets = np.random.default_rng(1).integers(256, size=(24, 6, 6, 3)), np.arange(24) % 3
    writer = ShardWriter(tmp_path / "shards", "train", "images", {"classes": 3})
    writer.add(pixels.astype(np.uint8), targets.astype(np.int32))
    writer.finish()
    keys = ["algorithm.name=allreduce", "data.path=shards", "data.colour_shift=0.1", "training.minibatch=4"]
    keys = [word for key in (*keys, 'model.layers=[{kind="fully-connected"}]') for word in ("--set", key)]
    assert simulated(2, *keys, "--set", "training.epochs=2", "--out", "whole").status == 0
    assert simulated(2, *keys, "--set", "training.epochs=1", "--out", "run").status == 0
    for path in (tmp_path / "shards").iterdir():
        set_attributes(path, then)
    ended = simulated(2, "--resume", "run", "--set", "training.epochs=2")
    assert ended.status == 0, ended.err
    sums = [json.loads((tmp_path / run / "summary.json").read_text())["parameters_sha256"] for run in ("whole", "run")]
    assert sums[0] == sums[1]
