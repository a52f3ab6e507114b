"""Vectors to the device and back. On the stand-in a copy that nobody waits for does not happen."""

from typing import Any

import numpy as np
import pytest

from mpitrain.device import gpu_memory as module
from mpitrain.device import staging
from mpitrain.device.cpu import CPU
from mpitrain.device.gpu import Gpu
from mpitrain.device.prefetch import open_loader
from mpitrain.flat import block_slices
from mpitrain.sampling.batch import SampleForm


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a vector is more than two of them."""
    monkeypatch.setattr(module, "CHUNK", 100)


def numbers(size: int = 1037) -> np.ndarray:
    return np.arange(size, dtype=np.float32)


def test_a_vector_comes_back_as_it_went(gpu: Gpu) -> None:
    there, back = gpu.to_device(numbers()), np.zeros(1037, np.float32)
    gpu.download(there, back)
    np.testing.assert_array_equal(back, numbers())


def test_the_source_may_change_at_once(gpu: Gpu) -> None:
    source = numbers()
    there = gpu.to_device(np.zeros(1037, np.float32))
    gpu.upload(there, source)
    source[:] = -1
    np.testing.assert_array_equal(there.get(), numbers())


def test_what_is_placed_stays_where_it_is(gpu: Gpu) -> None:
    there = gpu.to_device(numbers())
    assert gpu.to_device(there) is there


def test_an_upload_waits_for_kernels_that_read_the_old_values(gpu: Gpu) -> None:
    there = gpu.to_device(numbers())
    double = np.multiply(there, 2)
    gpu.upload(there, -numbers())
    np.testing.assert_array_equal(double.get(), 2 * numbers())
    np.testing.assert_array_equal(np.multiply(there, 1).get(), -numbers())


def test_parts_leave_in_the_order_in_which_they_are_final(gpu: Gpu) -> None:
    vector, out = gpu.to_device(np.zeros(1037, np.float32)), np.full(1037, np.nan, np.float32)
    outgoing = gpu.outgoing(vector, out)
    for part in (slice(700, 1037), slice(0, 1), slice(1, 700)):
        final = vector[part]
        np.add(final, part.start + 1.0, out=final)
        outgoing.start(part)
    outgoing.finish()
    expected = np.repeat([1, 2, 701], [1, 699, 337])
    np.testing.assert_array_equal(out, expected)


def test_kernels_stay_in_the_compute_stream(gpu: Gpu) -> None:
    """CuPy turns a matrix in a stream that it enters and leaves."""
    gpu.to_device(np.zeros((2, 3), np.float32)).T.get()
    assert gpu.cupy.cuda.get_current_stream() == gpu.compute


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_pieces_pass_through(device: str, request: pytest.FixtureRequest) -> None:
    """Every piece once, in order, treated once, and whole when it is yielded; some pieces bring nothing back."""
    chosen = CPU if device == "cpu" else request.getfixturevalue("gpu")
    source, treated = numbers(), []
    work = chosen.to_device(np.zeros(1037, np.float32))

    def treat(piece: slice, copy: Any) -> Any:
        treated.append(piece)
        np.add(copy, 1, out=work[piece])
        return work[piece] if piece.start % 200 == 0 else None

    pieces = block_slices(slice(0, 1037), 100)
    for _ in range(2):  # the second time with the buffers of the first
        treated.clear()
        staging = chosen.staging(source).through(pieces, lambda piece, out: np.copyto(out, source[piece]), treat)
        found = [(piece, None if d is None else d.copy()) for piece, d in staging]
        assert [piece for piece, _ in found] == pieces == treated
        for piece, d in found:
            assert (d is None) == (piece.start % 200 != 0)
            np.testing.assert_array_equal(source[piece] + 1 if d is None else d, source[piece] + 1)


def test_nothing_crosses_into_memory_that_kernels_may_still_use(gpu: Gpu) -> None:
    """CuPy gives memory to the next array as soon as Python lets go of the last, which is safe in one stream only."""
    before, read = gpu.to_device(numbers()), gpu.pinned(1037, np.float32)
    before.get(stream=gpu.compute, out=read, blocking=False)
    slot = staging._Slot(gpu, 99, np.dtype(np.float32))
    gpu.incoming.wait_event(slot.used)
    gpu.incoming.synchronize()
    np.testing.assert_array_equal(read, numbers())


class Corpus:
    """Samples that are their own numbers."""

    shape, classes, samples, in_memory, part = (2, 3), 2, 500, True, "train"
    form = SampleForm(shape)

    def gather(self, indices: np.ndarray, out: Any, place: Any = None) -> Any:
        """Every number of a sample is its index."""
        out.inputs[:] = indices[:, None, None]
        out.targets[:] = indices
        return out


@pytest.mark.parametrize("in_memory", [True, False])
def test_minibatches_are_staged_ahead(gpu: Gpu, in_memory: bool) -> None:
    """In order, of changing size, with the next one coming while the last one is used."""
    corpus = Corpus()
    corpus.in_memory = in_memory
    loader, plain = gpu.open_loader(corpus, np.dtype("float32")), open_loader(corpus, np.dtype("float32"))
    wanted = [np.arange(start, start + count) for start, count in ((0, 4), (4, 9), (13, 2), (15, 12), (27, 12))]
    loader.request(wanted[0])
    for number, indices in enumerate(wanted):
        batch = loader.take()
        if number + 1 < len(wanted):
            loader.request(wanted[number + 1])
        held = np.multiply(batch.inputs, 1)
        loader.stage()
        plain.request(indices)
        expected = plain.take()
        np.testing.assert_array_equal(held.get(), expected.inputs)
        np.testing.assert_array_equal(batch.targets.get(), expected.targets)
    loader.close()
    plain.close()
