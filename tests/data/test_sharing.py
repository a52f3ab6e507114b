"""What the ranks of a node have once is what each would have alone: samples, targets and orders."""

import gc
import json
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpitrain.api.options import TrainOptions
from mpitrain.api.train import train_on
from mpitrain.data.corpus import Corpus
from mpitrain.data.own import OwnPart
from mpitrain.data.sampler import epoch_indices
from mpitrain.data.shards import digest, document_arrays, shard_name, utterance_arrays, write_shard
from mpitrain.data.sharing import Alone, Orders
from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.mpi import Transport
from mpitrain.mpi.node_memory import NodeMemory
from mpitrain.sampling.batch import Samples
from mpitrain.signals import Stop
from mpitrain.simulation.job import Job


@pytest.fixture
def shared_path(transport: Transport, tmp_path: Path) -> Path:
    """The first rank's temporary folder."""
    return Path(transport.broadcast(str(tmp_path).encode(), "the folder").decode())


SHARDS = 3  # of 40 samples or more


def write(folder: Path, kind: str) -> None:
    draw = np.random.default_rng(5)
    for number in range(SHARDS):
        path = folder / shard_name("train", number, SHARDS)
        targets = draw.integers(0, 7, 40).astype(np.int32)
        if kind == "frames":
            lengths = [9, 25, 6]
            features = [draw.normal(3, 2, (length, 5)).astype(np.float32) for length in lengths]
            each = np.split(targets, np.cumsum(lengths)[:-1])
            arrays = utterance_arrays(features, each, speakers=[number, 7, number])
        elif kind == "images":
            arrays = {"images": draw.integers(0, 256, (40, 6, 6, 3), np.uint8), "targets": targets}
        else:
            arrays = document_arrays([draw.integers(0, 7, 50, np.uint16), draw.integers(0, 7, 31, np.uint16)])
        write_shard(path, kind, arrays, {"classes": 7})


def whole(part: Samples) -> tuple[Array, Array]:
    return tuple(part.gather(np.arange(part.samples), part.form.room(part.samples, np.float32)))  # type: ignore[return-value]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("frames", {"normalise": "speaker", "context": [2]}),
        ("frames", {"normalise": "utterance"}),
        ("frames", {}),
        ("frames", {"memory_limit": 0, "normalise": "speaker"}),
        ("frames", {"memory_limit": 1700, "normalise": "speaker", "context": [2]}),  # of two shards of three
        ("images", {}),
        ("tokens", {"window": 7}),
    ],
)
def test_shards_are_as_each_rank_would_read_them(
    transport: Transport, shared_path: Path, kind: str, how: dict[str, Any]
) -> None:
    if transport.rank == 0:
        write(shared_path, kind)
    transport.barrier("the shards")
    alone, together = Corpus(shared_path, "train", **how), Corpus(shared_path, "train", hold=False, **how)
    together.hold(NodeMemory(transport), partly=True)
    for mine, common in zip(whole(alone), whole(together), strict=True):
        assert mine.tobytes() == common.tobytes()
    assert alone.identity() == together.identity()


@pytest.mark.mpi(min_size=2)
def test_arrays_of_ones_own_are_as_they_were(transport: Transport) -> None:
    given = np.arange(70, dtype=np.float32).reshape(35, 2), np.arange(35) % 4
    alone, together = (OwnPart("data.import", "train", given, 4, np.float32) for _ in range(2))
    together.hold(NodeMemory(transport))
    for mine, common in zip(whole(alone), whole(together), strict=True):
        assert mine.tobytes() == common.tobytes()
    assert alone.identity() == together.identity()
    gone = weakref.ref(given[0])
    del alone, given
    gc.collect()
    assert gone() is None  # of which the node has a copy


@pytest.mark.mpi(min_size=2)
def test_a_damaged_shard_is_named_by_all(transport: Transport, shared_path: Path) -> None:
    """Whichever rank was to read or to verify it."""
    if transport.rank == 0:
        write(shared_path, "images")
        path = shared_path / shard_name("train", 1, SHARDS)
        content = bytearray(path.read_bytes())
        content[content.index(b"OHDR", len(content) // 3) - 2000] ^= 1
        path.write_bytes(content)
    transport.barrier("the shards")
    memory = NodeMemory(transport)
    with pytest.raises(BadInput, match="train-00001"):
        memory.together(lambda: None)
        Corpus(shared_path, "train", hold=False).hold(memory)


def test_simulated_ranks_name_a_damaged_shard_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, although each of them would have read it."""
    write(tmp_path, "images")
    monkeypatch.setattr("mpitrain.data.reader.digest", lambda array: "" if array.ndim == 4 else digest(array))
    options = TrainOptions(overrides=(f"data.path={tmp_path}", "run.threads=1"), out=tmp_path / "run")
    assert set(Job[int](3).run(lambda transport: train_on(transport, options, Stop()))) == {2}
    errors = capsys.readouterr().err
    assert "train-00000-of-00003.h5: damaged, images does not" in errors and errors.count("\n") == 1


@pytest.mark.mpi(min_size=2)
def test_ranks_in_different_epochs_have_their_orders(transport: Transport) -> None:
    """Each goes through three epochs at its own pace, from another one on."""
    samples = 211
    orders = Orders(samples, lambda epoch: epoch_indices(3, epoch, samples), NodeMemory(transport))
    for epoch in range(transport.rank, transport.rank + 3):
        for start in range(0, samples, 50):
            count = min(50, samples - start)
            part = orders.part(epoch, start, count)
            assert part.dtype == np.int64
            assert np.array_equal(part, epoch_indices(3, epoch, samples)[start : start + count])
    transport.barrier("the end")


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30))
def test_any_sequence_of_epochs_has_its_orders(epochs: list[int]) -> None:
    """Epochs that come again after later ones included."""
    orders = Orders(17, lambda epoch: epoch_indices(1, epoch, 17))
    for epoch in epochs:
        assert np.array_equal(orders.part(epoch, 2, 9), epoch_indices(1, epoch, 17)[2:11])


class Kept(Alone):
    """Another process keeps the lock."""

    tries = 0

    @contextmanager
    def locked(self) -> Iterator[bool]:
        Kept.tries += 1
        yield False


def test_an_order_whose_lock_is_kept_is_made_here() -> None:
    """The lock is tried once."""
    orders = Orders(17, lambda epoch: epoch_indices(1, epoch, 17), Kept())
    assert np.array_equal(orders.part(4, 0, 17), epoch_indices(1, 4, 17))
    assert np.array_equal(orders.part(4, 5, 12), epoch_indices(1, 4, 17)[5:])
    assert Kept.tries == 1


def test_an_order_that_its_maker_did_not_finish_is_made_again() -> None:
    made: list[int] = []

    def order(epoch: int) -> Array:
        made.append(epoch)
        if len(made) == 1:
            raise KeyboardInterrupt
        return epoch_indices(1, epoch, 17)

    orders = Orders(17, order)
    with pytest.raises(KeyboardInterrupt):
        orders.part(2, 0, 17)
    assert np.array_equal(orders.part(2, 0, 17), epoch_indices(1, 2, 17)) and made == [2, 2]
    assert np.array_equal(orders.part(2, 0, 5), epoch_indices(1, 2, 17)[:5]) and made == [2, 2]


def test_a_training_has_the_same_bits_by_one_copy_or_several(launch: Callable[..., Any], tmp_path: Path) -> None:
    hashes = set()
    for name, keys in (("one", ()), ("own", ("data.memory_limit_gb=1",)), ("disk", ("data.node_memory_gb=1e-9",))):
        words = [word for key in ("algorithm.name=allreduce", "training.epochs=2", *keys) for word in ("--set", key)]
        ended = launch(3, "--out", str(tmp_path / name), *words)
        assert ended.status == 0, ended.err
        hashes.add(json.loads((tmp_path / name / "summary.json").read_text())["parameters_sha256"])
    assert len(hashes) == 1
