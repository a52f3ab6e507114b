"""Augmentation: what is cut, reflected and coloured, and that it depends on nothing but seed, epoch and position."""

import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpitrain.data.augmentation import Augmentation, Views, colour_axes
from mpitrain.data.corpus import Corpus
from mpitrain.data.shards import write_shard
from mpitrain.errors import BadInput
from mpitrain.sampling.batch import Batch
from mpitrain.sampling.queue import Work
from mpitrain.sampling.rng import uniforms
from mpitrain.sampling.stages import Training
from mpitrain.training.gradients import Learner

COVARIANCE = np.array([[4.0, 2.0, 1.0], [2.0, 5.0, 0.5], [1.0, 0.5, 3.0]])


def _write_images(folder: Path, count: int = 40, shape: tuple[int, ...] = (6, 7, 3), **attributes: Any) -> np.ndarray:
    """Random images in one training shard; no two pixels of an image are likely alike."""
    images = np.random.default_rng(3).integers(0, 256, (count, *shape), np.uint8)
    arrays = {"images": images, "targets": (np.arange(count) % 2).astype(np.int32)}
    write_shard(folder / "train-00000-of-00001.h5", "images", arrays, {"classes": 2, **attributes})
    return images


def _gather(corpus: Corpus, indices: np.ndarray, place: tuple[int, int] | None, dtype: str = "float32") -> np.ndarray:
    batch = Batch(np.empty((len(indices), *corpus.shape), dtype), np.empty(len(indices), np.int32))
    return corpus.gather(np.asarray(indices, np.int64), batch, place).inputs


def test_places_have_numbers_of_their_own() -> None:
    whole, first, rest = np.empty((10, 8)), np.empty((3, 8)), np.empty((7, 8))
    uniforms(7, "augmentation", (2,), 100, whole)
    uniforms(7, "augmentation", (2,), 100, first)
    uniforms(7, "augmentation", (2,), 103, rest)
    assert np.array_equal(whole, np.concatenate([first, rest]))
    assert len(np.unique(whole)) == whole.size and (whole >= 0).all() and (whole < 1).all()
    for seed, purpose, epoch in ((8, "augmentation", 2), (7, "other", 2), (7, "augmentation", 3)):
        uniforms(seed, purpose, (epoch,), 100, first)
        assert not np.isin(first, whole).any()


@pytest.mark.parametrize("memory_limit", [1e9, 0])
def test_every_view_is_a_piece_of_its_image_and_all_pieces_come(tmp_path: Path, memory_limit: float) -> None:
    images = _write_images(tmp_path)
    augmentation = Augmentation(crop=5, flip=True, seed=1)
    corpus = Corpus(tmp_path, "train", augmentation=augmentation, normalise="none", memory_limit=memory_limit)
    assert corpus.shape == (5, 5, 3)
    seen = dict.fromkeys(((top, left, side) for top in range(2) for left in range(3) for side in (1, -1)), 0)
    order = np.random.default_rng(0).permutation(40)
    for epoch in range(10):
        for index, view in zip(order, _gather(corpus, order, (epoch, 0)), strict=True):
            found = [
                (top, left, side)
                for top, left, side in seen
                if np.array_equal(view, images[index, top : top + 5, left : left + 5][:, ::side])
            ]
            assert len(found) == 1
            seen[found[0]] += 1
    # 400 draws from 12 equal chances: 33 each, deviation 5.5
    assert all(12 < count < 56 for count in seen.values()), seen


@pytest.mark.parametrize("memory_limit", [1e9, 0])
def test_an_evaluation_sees_the_centre(tmp_path: Path, memory_limit: float) -> None:
    images = _write_images(tmp_path, covariance=COVARIANCE)
    augmentation = Augmentation(crop=4, flip=True, colour_shift=0.5)
    corpus = Corpus(tmp_path, "train", augmentation=augmentation, normalise="none", memory_limit=memory_limit)
    assert np.array_equal(_gather(corpus, np.arange(40), None), images[:, 1:5, 1:5])


def test_nothing_asked_for_changes_nothing(tmp_path: Path) -> None:
    images = _write_images(tmp_path)
    assert np.array_equal(_gather(Corpus(tmp_path, "train", normalise="none"), np.arange(40), (3, 0)), images)


def test_pixels_become_units(tmp_path: Path) -> None:
    images = _write_images(tmp_path, mean=np.float32([9, 9, 9]), standard_deviation=np.float32([2, 2, 2]))
    inputs = _gather(Corpus(tmp_path, "train", normalise="unit", dtype="float64"), np.arange(40), None, "float64")
    assert np.allclose(inputs, images / 255, rtol=0, atol=1e-15)


def test_the_mean_alone_is_subtracted(tmp_path: Path) -> None:
    images = _write_images(tmp_path, mean=np.float32([9, 8, 7]), standard_deviation=np.float32([2, 2, 2]))
    inputs = _gather(Corpus(tmp_path, "train", normalise="mean", dtype="float64"), np.arange(40), None, "float64")
    assert np.array_equal(inputs, images - np.array([9.0, 8.0, 7.0]))


@settings(max_examples=20)
@given(cuts=st.lists(st.integers(0, 40), max_size=6), seed=st.integers(0, 3))
def test_minibatches_and_ranks_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("images")
    _write_images(folder, covariance=COVARIANCE)
    augmentation = Augmentation(crop=3, flip=True, colour_shift=0.1, seed=seed)
    whole = _gather(Corpus(folder, "train", augmentation=augmentation), np.arange(40), (5, 0))
    edges = sorted({0, 40, *cuts})
    for begin, end in pairwise(edges):  # each piece by a rank of its own
        mine = Corpus(folder, "train", augmentation=augmentation, memory_limit=0)
        assert np.array_equal(_gather(mine, np.arange(begin, end), (5, begin)), whole[begin:end])
    assert not np.array_equal(_gather(mine, np.arange(40), (6, 0)), whole)


@pytest.mark.parametrize("memory_limit", [1e9, 0])
def test_a_learner_draws_by_the_position_of_its_work(tmp_path: Path, memory_limit: float) -> None:
    _write_images(tmp_path)
    corpus = Corpus(tmp_path, "train", augmentation=Augmentation(crop=2, flip=True), memory_limit=memory_limit)
    learner = Learner(None, corpus, Training())
    works = [Work(1, 0, 16, 16), Work(1, 16, 16, 16), Work(1, 32, 8, 16)]
    learner.expect(works)
    parts = [learner.load(work).inputs.copy() for work in works]
    order = learner.indices(Work(1, 0, 40, 40))
    learner.loader.close()
    assert np.array_equal(np.concatenate(parts), _gather(corpus, order, (1, 0)))


def test_colour_moves_along_the_principal_axes(tmp_path: Path) -> None:
    """Shifts N(0, σ²) along each axis times its deviation have the covariance σ²·C, and are one a picture."""
    images = _write_images(tmp_path, 4000, (2, 2, 3), covariance=COVARIANCE)
    augmentation = Augmentation(colour_shift=0.1)
    corpus = Corpus(tmp_path, "train", augmentation=augmentation, normalise="none", dtype="float64")
    shifts = _gather(corpus, np.arange(4000), (0, 0), "float64") - images
    assert np.allclose(shifts, shifts[:, :1, :1], rtol=0, atol=1e-12)
    drawn = shifts[:, 0, 0]
    assert np.abs(drawn.mean(axis=0)).max() < 0.02  # deviation of the mean: 0.1·√5/√4000 = 0.0035
    assert np.allclose(np.cov(drawn.T), 0.01 * COVARIANCE, rtol=0, atol=0.005)
    axes = colour_axes(COVARIANCE, np.ones(3), 0.1)
    assert np.allclose(axes @ axes.T, 0.01 * COVARIANCE)
    numbers = drawn @ np.linalg.inv(axes).T  # independent, normal, of deviation 1
    assert np.allclose(np.cov(numbers.T), np.eye(3), atol=0.1)
    assert np.abs((np.abs(numbers) < 1).mean(axis=0) - 0.6827).max() < 0.03
    assert np.abs((np.abs(numbers) > 2).mean(axis=0) - 0.0455).max() < 0.015


def test_colour_shifts_are_normalised_as_the_pixels_are(tmp_path: Path) -> None:
    scales = np.float32([2, 4, 8])
    _write_images(tmp_path, covariance=COVARIANCE, mean=np.float32([1, 2, 3]), standard_deviation=scales)
    plain, shifted = (
        Corpus(tmp_path, "train", augmentation=Augmentation(colour_shift=shift), normalise=how)
        for how, shift in (("none", 0.1), ("corpus", 0.1))
    )
    bare = _gather(plain, np.arange(40), (0, 0))
    assert np.allclose(_gather(shifted, np.arange(40), (0, 0)), (bare - [1, 2, 3]) / scales, atol=1e-4)


def test_nothing_is_allocated_for_a_minibatch(tmp_path: Path) -> None:
    _write_images(tmp_path, 400, (16, 16, 3), covariance=COVARIANCE)
    augmentation = Augmentation(crop=12, flip=True, colour_shift=0.1)
    corpus = Corpus(tmp_path, "train", augmentation=augmentation)
    batch = Batch(np.empty((400, *corpus.shape), np.float32), np.empty(400, np.int32))
    indices = np.arange(400)
    for place in ((0, 0), (1, 0)):
        corpus.gather(indices, batch, place)
    tracemalloc.start()
    for _ in range(10):
        corpus.gather(indices, batch, (1, 0))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 8192, most  # the draws alone would take 25,600 bytes


@pytest.mark.parametrize(
    ("augmentation", "normalise", "line"),
    [
        (Augmentation(crop=7), "corpus", r"data\.crop = 7: the images are 6 x 7 pixels"),
        (Augmentation(colour_shift=0.1), "corpus", r"train-00000-of-00001\.h5: has no covariance .*data\.colour_shift"),
        (Augmentation(), "speaker", r"data\.normalise = speaker: images have none"),
    ],
)
def test_what_images_cannot_have_is_named(
    tmp_path: Path, augmentation: Augmentation, normalise: str, line: str
) -> None:
    _write_images(tmp_path)
    with pytest.raises(BadInput, match=line):
        Corpus(tmp_path, "train", augmentation=augmentation, normalise=normalise)


def test_buffers_grow_with_the_minibatch() -> None:
    views = Views(Augmentation(crop=1, flip=True), (2, 2), 1, None, np.dtype("f4"))
    small = views.at((0, 5), 3)[0].copy()
    large = views.at((0, 0), 50)[0]
    assert large.shape == (50, 3) and np.array_equal(large[5:8], small)
