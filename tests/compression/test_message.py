"""Messages: what was encoded comes back, and anything else is CorruptMessage."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpitrain.compression import message
from mpitrain.compression.message import CODECS, HEADER, CorruptMessage, Form, MessageHeader, WireForm
from mpitrain.compression.residual import INDEX, NO_LEVELS, Entries
from mpitrain.compression.thresholds import greatest_level

MORE = (2, 4, 32)  # bits an element with levels
BITMAP_LIMIT = 2**21  # the longest vector these tests hold a buffer for


TOP = 2**31 - 1
#: (vector length, indices) that are hard on a decoder.
ADVERSARIAL = {
    "empty": (100, []),
    "empty vector": (0, []),
    "only": (1, [0]),
    "all": (1000, range(1000)),
    "first": (1000, [0]),
    "last": (1000, [999]),
    "first and last": (1000, [0, 999]),
    "top": (2**31, [TOP]),
    "first and top": (2**31, [0, TOP]),
    "gaps of 1, then the top": (2**31, [*range(500), TOP]),
    "gaps of 1 before the top": (2**31, range(2**31 - 500, 2**31)),
    "gaps of 32": (32 * 32, range(31, 1024, 32)),
    "clusters": (2**20, [*range(300), *range(2**19, 2**19 + 300)]),
    "powers": (2**31, [2**i for i in range(31)]),
}


def with_signs(indices, seed=0):
    """uint32 words at `indices`, ascending."""
    indices = np.asarray(indices, np.uint32)
    return indices | (np.random.default_rng(seed).integers(0, 2, indices.size, dtype=np.uint32) << np.uint32(31))


@st.composite
def sparse(draw):
    """A vector length and words within it."""
    length = draw(st.integers(1, 500) | st.integers(1, 2**31))
    indices = draw(st.sets(st.integers(0, length - 1), max_size=60) | st.just(set(range(min(length, 300)))))
    return length, with_signs(sorted(indices), draw(st.integers(0, 9)))


def wire(length, bits=1, codec="packed", elements=4096):
    """The form of messages about a vector of `length`. Decoding has memory for at most this many elements, filled with
    what no message holds, so that a place that is not written shows."""
    form = WireForm(min(length, elements), bits, codec)
    form.length = length
    for memory in (form._words, form._levels):
        memory.fill(0xAAAAAAAA)
    return form


def encoded(words, length, codec, *, bits=1, **changes):
    """The header and the message that rank 3 sends of these words, in new memory. A vector that is too long for bitmaps
    has few words, and the memory is only as large as they need."""
    header, form = MessageHeader(2**40, step=12345, threshold=0.75)._replace(**changes), wire(length, bits, codec)
    room = form.capacity if length <= BITMAP_LIMIT else HEADER + 12 * words.size + 4096
    entries = Entries(words, some_levels(words.size, bits))
    return header, form.encode(entries, 3, *header, np.full(room, 0xAA, np.uint8))


def some_levels(count, bits):
    """Levels of every size that `bits` can say; none of one bit."""
    top = greatest_level(bits)
    levels = np.random.default_rng(count).integers(1, top, count, np.uint32, endpoint=True)
    levels[:2] = [1, top][:count]
    return levels if bits > 1 else NO_LEVELS


def decoded(data, length, *, sender=3, bits=1, elements=4096):
    """The header, the words and their levels."""
    header, entries = wire(length, bits, elements=elements).decode(data, sender)
    return header, entries.words.tolist(), entries.levels.tolist()


def reseal(data):
    """Give a changed message a right checksum, as a faulty sender would."""
    message.CHECKSUM.pack_into(data, message.FIELDS.size, message._checksum(data))
    return data


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_adversarial_indices_come_back(codec, name):
    length, indices = ADVERSARIAL[name]
    words = with_signs(list(indices))
    header, data = encoded(words, length, codec)
    assert decoded(data, length) == (header, words.tolist(), [])


@given(sparse(), st.sampled_from(list(CODECS)))
def test_words_come_back(case, codec):
    length, words = case
    if CODECS[codec][16 * words.size > length] is Form.BITMAP and length > BITMAP_LIMIT:
        return
    header, data = encoded(words, length, codec)
    assert decoded(data, length) == (header, words.tolist(), [])


@pytest.mark.parametrize("density", [0.0, 0.01, 1 / 17, 1 / 15, 0.3, 0.6, 0.99, 1.0])
@pytest.mark.parametrize("codec", CODECS)
def test_any_message_fits_the_capacity(codec, density):
    length = 10_007
    words = with_signs(np.flatnonzero(np.random.default_rng(5).random(length) < density))
    _, data = encoded(words, length, codec)
    assert data.size <= wire(length).capacity
    assert decoded(data, length, elements=length)[1] == words.tolist()


def test_forms_by_codec_and_density():
    sparse_words, dense_words = with_signs(np.arange(62) * 16), with_signs(np.arange(63))
    forms = {codec: [encoded(w, 1000, codec)[1][5] for w in (sparse_words, dense_words)] for codec in CODECS}
    assert forms == {"packed": [0, 2], "golomb-rice": [1, 1], "auto": [1, 2]}


def test_packed_message_by_hand():
    words = np.array([7, 0x80000009], np.uint32)
    data = wire(1000).encode(Entries(words), 2, 5, 64, 4.0, np.empty(wire(1000).capacity, np.uint8))
    expected = "6d707364 01 00 00 00  02000000 40000000  0500000000000000  e8030000 02000000  0800000000000000  "
    expected += "0000000000001040"
    assert data[:48].tobytes() == bytes.fromhex(expected)
    assert data[56:].tobytes() == bytes.fromhex("07000000 09000080")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("elements", [0, 5, 80])
def test_every_flipped_bit_is_seen(codec, elements):
    _, data = encoded(with_signs(np.arange(elements) * 12), 1000, codec)
    for bit in range(8 * data.size):
        flipped = data.copy()
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptMessage, match="rank 3"):
            decoded(flipped, 1000)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("elements", [0, 5, 80])
def test_every_truncation_and_an_extension_are_seen(codec, elements):
    _, data = encoded(with_signs(np.arange(elements) * 12), 1000, codec)
    for size in range(data.size):
        with pytest.raises(CorruptMessage):
            decoded(data[:size].copy(), 1000)
    with pytest.raises(CorruptMessage):
        decoded(np.append(data, np.uint8(0)), 1000)


@given(
    st.sampled_from(list(CODECS)),
    st.sampled_from([0.01, 0.05, 0.2, 0.9]),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(1, 255)), max_size=3),
    st.integers(-5, 5),
)
def test_a_sealed_wrong_message_is_refused_or_means_what_it_says(codec, density, changes, growth):
    """Without the checksum's help: never an index out of bounds, out of order, or another number of elements."""
    length = 600
    words = with_signs(np.flatnonzero(np.random.default_rng(6).random(length) < density))
    _, data = encoded(words, length, codec)
    data = np.resize(data, max(HEADER, data.size + 4 * growth))
    for at, flip in changes:
        data[at % data.size] ^= flip
    message.FIELDS.pack_into(data, 0, *message.FIELDS.unpack_from(data)[:-2], data.size - HEADER, 0.75)
    form, guarded = wire(length), np.full(2 * length, 0x55555555, np.uint32)
    form._words = guarded[:length]
    try:
        _, entries = form.decode(reseal(data), 3)
    except CorruptMessage as error:
        assert error.sender == 3
    else:
        indices = (entries.words & INDEX).astype(np.int64)
        assert (np.diff(indices) > 0).all() and (indices < length).all()
    assert (guarded[length:] == 0x55555555).all()


@given(st.binary(max_size=200))
def test_noise_is_no_message(noise):
    with pytest.raises(CorruptMessage):
        decoded(np.frombuffer(noise, np.uint8).copy(), 1000)


def test_a_message_of_another_sender_length_or_step_is_refused():
    _, data = encoded(with_signs([1, 2]), 1000, "packed")
    with pytest.raises(CorruptMessage, match=r"rank 4: says it is from rank 3"):
        decoded(data, 1000, sender=4)
    with pytest.raises(CorruptMessage, match="ours has 999"):
        decoded(data, 999)
    for change in ({"step": 0}, {"step": 2**31}, {"threshold": 0.0}, {"threshold": float("nan")}):
        _, data = encoded(with_signs([1, 2]), 1000, "packed", **change)
        with pytest.raises(CorruptMessage, match="step"):
            decoded(data, 1000)


@pytest.mark.parametrize("payload", [[5, 5], [6, 5], [5, 1000], [5, 0x80000005]])
def test_packed_indices_must_ascend_within_the_vector(payload):
    _, data = encoded(with_signs([1, 2]), 1000, "packed")
    data[HEADER:].view("<u4")[:] = payload
    with pytest.raises(CorruptMessage, match="ascending"):
        decoded(reseal(data), 1000)


def altered(codec, extra=0, **fields):
    """A message of elements 0 and 1 of 1000 with some header fields changed, zeros added, and a right checksum."""
    _, data = encoded(np.arange(2, dtype=np.uint32), 1000, codec)
    data = np.append(data, np.zeros(extra, np.uint8))
    names = (
        "magic",
        "version",
        "form",
        "k",
        "zero",
        "sender",
        "step",
        "sequence",
        "length",
        "elements",
        "bytes",
        "tau",
    )
    values = dict(zip(names, message.FIELDS.unpack_from(data), strict=True)) | {"bytes": data.size - HEADER} | fields
    message.FIELDS.pack_into(data, 0, *values.values())
    return reseal(data)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (altered("packed", extra=2), "ascending"),
        (altered("packed", extra=4), "ascending"),
        (altered("packed", elements=1), "ascending"),
        (altered("packed", elements=1001, extra=4 * 999), "1001 elements"),
        (altered("packed", k=1), "ascending"),
        (altered("packed", form=3), "form 3"),
        (altered("packed", zero=1), "bits an element is 1, not 0"),
        (altered("packed", version=2), "version 2"),
        (altered("packed", bytes=4), "its header says 60"),
        (altered("golomb-rice", k=31, extra=8), "ascending"),  # all zeros: would else decode
        (altered("golomb-rice", k=255), "ascending"),
    ],
)
def test_every_field_is_checked(data, why):
    with pytest.raises(CorruptMessage, match=why):
        decoded(data, 1000)


@pytest.mark.parametrize("bits", MORE)
@pytest.mark.parametrize("codec", CODECS)
def test_levels_come_back_at_any_density(codec, bits):
    length = 1007
    for density in (0.0, 0.002, 1 / 17, 1 / 15, 0.3, 1.0):
        words = with_signs(np.flatnonzero(np.random.default_rng(5).random(length) < density))
        header, data = encoded(words, length, codec, bits=bits)
        levels = some_levels(words.size, bits).tolist()
        assert decoded(data, length, bits=bits) == (header, words.tolist(), levels)
        assert data.size <= wire(length, bits).capacity
        one = encoded(words, length, codec)[1]
        assert data.size - one.size == 4 * -(-words.size * (bits - 1) // 32)


@pytest.mark.parametrize("bits", MORE)
@pytest.mark.parametrize("codec", CODECS)
def test_every_spoilt_message_with_levels_is_refused(codec, bits):
    """A flipped bit, with a right checksum only where it is part of a sign, an index or a level; a missing byte."""
    _, data = encoded(with_signs(np.arange(7) * 12), 100, codec, bits=bits)
    for bit in range(8 * data.size):
        flipped = data.copy()
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptMessage, match="rank 3"):
            decoded(flipped, 100, bits=bits)
        if bit >= 8 * HEADER:
            try:
                _, words, levels = decoded(reseal(flipped), 100, bits=bits)
            except CorruptMessage:
                continue
            assert len(words) == len(levels) == 7 and all(1 <= level <= greatest_level(bits) for level in levels)
    for size in range(data.size):
        with pytest.raises(CorruptMessage):
            decoded(data[:size].copy(), 100, bits=bits)
    with pytest.raises(CorruptMessage):
        decoded(np.append(data, np.zeros(4, np.uint8)), 100, bits=bits)


@pytest.mark.parametrize("bits", [1, *MORE])
def test_a_message_of_other_bits_is_refused(bits):
    _, data = encoded(with_signs([1, 2]), 1000, "packed", bits=bits)
    for other in {1, *MORE} - {bits}:
        with pytest.raises(CorruptMessage, match="bits an element"):
            decoded(data, 1000, bits=other)


def test_a_message_of_four_bits_by_hand():
    words, levels = np.array([7, 0x80000009], np.uint32), np.array([8, 3], np.uint32)
    data = wire(1000, 4).encode(Entries(words, levels), 2, 5, 64, 4.0, np.empty(wire(1000, 4).capacity, np.uint8))
    expected = "6d707364 01 00 00 04  02000000 40000000  0500000000000000  e8030000 02000000  0c00000000000000  "
    assert data[:48].tobytes() == bytes.fromhex(expected + "0000000000001040")
    assert data[56:].tobytes() == bytes.fromhex("07000000 09000080 17000000")  # 8 - 1 and 3 - 1 in three bits each


def test_levels_must_fit_the_bits():
    for levels, bits in ((NO_LEVELS, 4), (np.ones(1, np.uint32), 1), (np.ones(2, np.uint32), 4)):
        with pytest.raises(ValueError, match=f"{levels.size} levels for 1 words of {bits} bits"):
            wire(10, bits).encode(Entries(with_signs([3]), levels), 0, 0, 1, 1.0, np.empty(999, np.uint8))


def test_words_beyond_the_vector_are_not_encoded():
    with pytest.raises(ValueError, match="vector of 10"):
        encoded(with_signs([10]), 10, "packed")
