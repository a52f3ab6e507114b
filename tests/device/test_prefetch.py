"""Loaders: order, buffers that hold, errors, and an end."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.data.corpus import Corpus
from mpitrain.data.digits import embedded
from mpitrain.device.prefetch import Direct, Prefetcher, open_loader
from mpitrain.errors import BadInput, Overdue
from mpitrain.sampling.batch import Batch, SampleForm
from tests.faults import Fault, program


class Numbers:
    """A corpus whose samples are their own index; `failing` cannot be read; `gate` holds the reading up."""

    part, shape, in_memory = "train", (2,), False
    form = SampleForm(shape)

    def __init__(self, failing: int = -1) -> None:
        self.failing, self.gate = failing, threading.Event()
        self.gate.set()

    def gather(self, indices: np.ndarray, out: Batch, place: Any = None) -> Batch:
        assert self.gate.wait(10)
        if self.failing in indices:
            raise BadInput("train-00003-of-00008.h5: damaged")
        out.inputs[:] = indices[:, None]
        out.targets[:] = indices
        return out


def _loader(corpus: Any, kind: type, ahead: int = 2, deadline: float = 10.0) -> Any:
    return kind(corpus, np.dtype("float32"), ahead, deadline) if kind is Prefetcher else kind(corpus, np.float32, ahead)


@pytest.mark.parametrize("kind", [Direct, Prefetcher])
@pytest.mark.parametrize("ahead", [1, 3])
def test_minibatches_come_in_order_and_hold_until_the_next(kind: type, ahead: int) -> None:
    loader = _loader(Numbers(), kind, ahead)
    sizes = [3, 1, 5, 2, 4, 4, 1, 6]
    wanted = [np.arange(sum(sizes[:n]), sum(sizes[: n + 1])) for n in range(len(sizes))]
    asked = 0
    for indices in wanted:
        while loader.room and asked < len(wanted):
            loader.request(wanted[asked])
            asked += 1
        batch = loader.take()
        while loader.room and asked < len(wanted):
            loader.request(wanted[asked])
            asked += 1
        assert batch.targets.tolist() == indices.tolist()
        assert batch.inputs.shape == (len(indices), 2) and (batch.inputs[:, 1] == indices).all()
    loader.close()


@pytest.mark.parametrize("kind", [Direct, Prefetcher])
def test_an_error_comes_where_its_minibatch_is_taken(kind: type) -> None:
    loader = _loader(Numbers(failing=7), kind)
    loader.request(np.arange(3))
    loader.request(np.arange(5, 9))
    assert loader.take().targets.tolist() == [0, 1, 2]
    with pytest.raises(BadInput, match="train-00003-of-00008"):
        loader.take()
    loader.close()


@pytest.mark.parametrize("kind", [Direct, Prefetcher])
def test_asking_for_too_many(kind: type) -> None:
    loader = _loader(Numbers(), kind, ahead=1)
    loader.request(np.arange(3))
    with pytest.raises(RuntimeError):
        loader.request(np.arange(3))
    loader.close()


def test_a_reader_that_hangs_is_overdue() -> None:
    corpus = Numbers()
    corpus.gate.clear()
    loader = _loader(corpus, Prefetcher, deadline=0.05)
    loader.request(np.arange(3))
    with pytest.raises(Overdue, match="train"):
        loader.take()
    corpus.gate.set()
    loader.close()


def test_a_training_waits_as_long_as_run_deadline_says(tmp_path: Path, launch: Any) -> None:
    slow = program(Fault("mpitrain.data.reader.ShardFile.read_rows", ["sleep 60"], thread="prefetch"))
    keys = ("algorithm.name=sgd", "data.memory_limit_gb=1e-9", "run.deadline=2", "training.epochs=0.1")
    words = [word for key in keys for word in ("--set", key)]
    ended = launch(1, "train", *words, deadline=50, program=slow)
    assert ended.status not in (0, 2) and "reading train took longer than 2 s (run.deadline)" in ended.err


def test_close_ends_the_thread() -> None:
    loader = _loader(Numbers(), Prefetcher)
    loader.request(np.arange(3))
    (thread,) = (each for each in threading.enumerate() if each is loader._thread)  # type: ignore[attr-defined]
    loader.close()
    assert not thread.is_alive()
    with pytest.raises(RuntimeError):
        _loader(Numbers(), Prefetcher).take()


def test_the_loader_suits_the_corpus(tmp_path: Path) -> None:
    memory, disk = (Corpus(embedded(), "test", memory_limit=limit) for limit in (1e9, 0))
    loaders = [open_loader(corpus, np.dtype("float32")) for corpus in (memory, disk)]
    assert [type(loader) for loader in loaders] == [Direct, Prefetcher]
    for loader in loaders:
        loader.request(np.arange(50, 10, -1))
    first, second = (loader.take() for loader in loaders)
    assert np.array_equal(first.inputs, second.inputs) and np.array_equal(first.targets, second.targets)
    for loader in loaders:
        loader.close()
