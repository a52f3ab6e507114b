"""What every compressor keeps to: nothing is lost between vectors, residual and entries; messages say what was sent."""

from collections.abc import Callable

import numpy as np
import pytest

from mpitrain.compression.chunks import LargestOfChunks
from mpitrain.compression.compressor import Compressor, Thresholds
from mpitrain.compression.message import CODECS, HEADER, CorruptMessage
from mpitrain.compression.residual import INDEX, SIGN
from mpitrain.compression.thresholds import UNIT, adapted
from mpitrain.errors import TrainingFailed
from mpitrain.flat import Array

SIZE, RATE, BITS = 1000, 0.05, (1, 2, 4, 32)
TENSORS = (slice(0, 300), slice(300, 305), slice(305, SIZE))
Make = Callable[[Array, int, str], Compressor]
KINDS: dict[str, Make] = {
    "fixed": lambda residual, bits, codec: Thresholds(residual, {"threshold": 1.0}, bits, codec),
    "adaptive": lambda residual, bits, codec: Thresholds(residual, {"threshold": 1.0}, bits, codec, 0.05),
    "largest": lambda residual, bits, codec: LargestOfChunks(residual, TENSORS, 3, 64, bits, codec),
}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def thresholds(residual: Array, threshold: float, **more: float) -> Thresholds:
    """Of one bit, as configured by default."""
    return Thresholds(residual, {"threshold": threshold}, 1, "packed", **more)  # type: ignore[arg-type]


@every_kind
@pytest.mark.parametrize("bits", BITS)
def test_what_was_put_in_is_in_the_residual_or_was_sent(make: Make, bits: int) -> None:
    """After every vector; those that are held back count too."""
    random, residual = np.random.default_rng(bits), np.zeros(SIZE)
    compressor, put_in, sent = make(residual, bits, "auto"), np.zeros(SIZE), np.zeros(SIZE)
    for number in range(12):
        vector = random.standard_normal(SIZE)
        compressor.begin(2.0, RATE, emit=number % 4 != 1)
        entries = compressor.end(vector)
        put_in += 2.0 * vector
        places = entries.words & INDEX
        assert (np.diff(places.astype(np.int64)) > 0).all() and (number % 4 != 1 or not places.size)
        sent[places] += compressor.amounts(entries)
        np.testing.assert_allclose(residual + sent, put_in, rtol=0, atol=1e-9)
    assert np.count_nonzero(sent) > 30


@every_kind
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bits", BITS)
def test_no_entries_are_a_message_too(make: Make, bits: int, codec: str) -> None:
    """Of a rank that has nothing to send."""
    compressor = make(np.zeros(SIZE), bits, codec)
    message = compressor.wire.encode(compressor.nothing, 0, 0, 1, 1.0, np.empty(compressor.wire.capacity, np.uint8))
    assert compressor.wire.decode(message, 0)[1].words.size == 0


@every_kind
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bits", BITS)
def test_a_message_says_what_was_sent(make: Make, bits: int, codec: str) -> None:
    """Sparse and dense; and one whose bytes differ is refused."""
    for scale in (1.0, 1e-3):
        residual = scale * np.random.default_rng(1).standard_normal(SIZE)
        compressor = make(residual, bits, codec)
        compressor.begin(1.0, RATE, emit=True)
        entries, wire = compressor.end(np.zeros(SIZE)), compressor.wire
        out = np.empty(wire.capacity, np.uint8)
        message = wire.encode(entries, 3, 7, compressor.step, compressor.threshold, out)
        header, decoded = wire.decode(message, 3)
        assert header == (7, compressor.step, compressor.threshold)
        assert decoded.words.tolist() == entries.words.tolist() and decoded.levels.tolist() == entries.levels.tolist()
        message[message.size // 2] ^= 1
        with pytest.raises(CorruptMessage, match="rank 3"):
            wire.decode(message, 3)


@every_kind
def test_a_vector_that_is_not_finite_is_refused(make: Make) -> None:
    compressor = make(np.zeros(SIZE), 1, "auto")
    compressor.begin(1.0, RATE, emit=True)
    with pytest.raises(TrainingFailed, match="is not finite"), np.errstate(invalid="ignore"):
        compressor.end(np.where(np.arange(SIZE) == 77, np.nan, 0.0))


def test_the_largest_of_every_chunk_leave_the_residual() -> None:
    """Two of four in two tensors; a chunk of zeros sends nothing, one of two elements one. With two bits, sizes up to
    1.5 root mean squares are a level, whose value is their mean: of 3, 4 and 8 in the first tensor, √(89/3) = 5.4."""
    residual = np.array([3.0, -1.0, 4.0, 2.0, 0.0, 0.0, 0.0, 0.0, -8.0, 0.5, 1.0, -0.25, 0.5, 0.125])
    compressor = LargestOfChunks(residual, [slice(0, 10), slice(10, 14)], 2, 4, bits=2)
    compressor.begin(1.0, 1.0, emit=True)
    entries = compressor.end(np.zeros(14))
    assert [(int(word & INDEX), bool(word & SIGN)) for word in entries.words] == [
        *((0, False), (2, False), (8, True), (10, False), (12, False)),
    ]
    assert entries.codes.tolist() == [1, 1, 1, 1, 1] and (entries.levels * UNIT).tolist() == [5, 5, 5, 0.75, 0.75]
    np.testing.assert_allclose(residual, [-2, -1, -1, 2, 0, 0, 0, 0, -3, 0.5, 0.25, -0.25, -0.25, 0.125])
    # Sizes 1, 1, 1 and 5 have a root mean square of 2.6.
    residual[:] = [1, 0, 1, 0, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    entries = compressor.end(np.zeros(14))
    assert entries.codes.tolist() == [1, 1, 2, 1] and (entries.levels * UNIT).tolist() == [1, 1, 5, 1]
    assert not residual.any()


@pytest.mark.parametrize(("top_k", "ratio"), [(64, 140), (41, 300)])
def test_a_message_of_the_largest_is_small(top_k: int, ratio: int) -> None:
    """1.56 % and 1 % of entries in two bits each and coded gaps, of a vector of float32."""
    residual = np.random.default_rng(1).standard_normal(1 << 18).astype(np.float32)
    compressor = LargestOfChunks(residual, [slice(0, 1 << 17), slice(1 << 17, 1 << 18)], top_k, 4096, 2, "auto")
    compressor.begin(1.0, 1.0, emit=True)
    entries, out = compressor.end(np.zeros_like(residual)), np.empty(compressor.wire.capacity, np.uint8)
    assert entries.words.size == 64 * top_k
    message = compressor.wire.encode(entries, 0, 0, 1, compressor.threshold, out)
    assert HEADER < message.nbytes < residual.nbytes / ratio


@pytest.mark.parametrize(("clip", "held"), [(2.0, [1.0, -1.0, 0.25, 0.0, 0.0]), (0.5, [0.25, -0.25, 0.25, 0.0, 0.0])])
def test_a_residual_is_clipped_while_its_entries_are_held_back(clip: float, held: list[float]) -> None:
    """±2.5 and 0.25 to `clip` thresholds of 0.5. Then it is emitted: one threshold out of what exceeds it."""
    compressor = thresholds(np.zeros(5), 0.5, clip=clip)
    compressor.begin(4, RATE, emit=False)
    assert compressor.end(np.array([0.625, -0.625, 0.0625, 0.0, 0.0])).words.size == 0
    assert compressor.residual.tolist() == held
    compressor.begin(4, RATE, emit=True)
    emitted = compressor.end(np.zeros(5))
    assert emitted.words.size == (2 if clip == 2 else 0)
    assert compressor.residual.tolist() == ([0.5, -0.5, 0.25, 0.0, 0.0] if clip == 2 else held)


@pytest.mark.parametrize("bits", [1, 4])
def test_a_vector_may_come_in_parts(bits: int) -> None:
    """From the last to the first; those of another order are taken from the vector at the end. Half of ±1.5 and ±3 is
    emitted at a threshold of 1, of which an element of 4 bits says three."""
    vector = np.array([0.75, 0.25, -1.5, 0.1, 1.5])
    for parts in ([], [(3, 5), (1, 3), (0, 1)], [(3, 5), (0, 1)], [(0, 5)]):
        compressor = Thresholds(np.zeros(5), {"threshold": 1.0}, bits)
        compressor.begin(2, RATE, emit=True)
        for start, stop in parts:
            compressor.take(slice(start, stop), vector[start:stop])
        words, levels, *_ = compressor.end(vector.copy())
        assert [int(word & INDEX) for word in words] == [0, 2, 4]
        assert [bool(word & SIGN) for word in words] == [False, True, False]
        assert levels.tolist() == ([] if bits == 1 else [1, 3, 3])
        left = [0.5, 0.5, -2.0, 0.2, 2.0] if bits == 1 else [0.5, 0.5, 0.0, 0.2, 0.0]
        np.testing.assert_allclose(compressor.residual, left, rtol=1e-6)


def test_vectors_whose_entries_are_held_back_count_in_the_density() -> None:
    """Two of five elements after three vectors are 2/15 of a vector: to this the threshold answers."""
    numbers = {"threshold": 0.5}
    compressor = Thresholds(np.zeros(5), numbers, target_density=0.25)
    for emits in (False, False, True):
        compressor.begin(4, RATE, emit=emits)
        found = compressor.end(np.array([0.1, -0.1, 0.0, 0.0, 0.0]))
    assert found.words.size == 2
    assert numbers["threshold"] == adapted(0.5, 2 / 5 / 3, 0.25, RATE)
