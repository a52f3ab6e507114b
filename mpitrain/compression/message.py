"""Messages of the sparse delta exchange: a header of 56 bytes, then the elements in one of three forms.

    packed       one uint32 per element, sign in the top bit, index in 31 (Strom 2015, §2.5)
    golomb-rice  see `golomb_rice`
    bitmap       see `bitmap`

In every form, elements of more than one bit are followed by their levels, of bits − 1 bits each (see `levels`). Where
the tensors' levels differ, these bits are the number of a level, and a table for each tensor follows, in uint32.

All values are little-endian. The header ends with the xxh3 of its other fields and the payload, so that a corrupt
message raises an error and never changes a weight. Encoder and decoder write into memory of the caller.
"""

import struct
from enum import IntEnum
from math import isfinite
from typing import NamedTuple

import numpy as np
from numba import njit
from xxhash import xxh3_64

from mpitrain.compression import bitmap, golomb_rice
from mpitrain.compression import levels as level_form
from mpitrain.compression.residual import INDEX, NO_LEVELS, Entries
from mpitrain.compression.thresholds import COUNT_MAX, greatest_level
from mpitrain.flat import Array

MAGIC = b"mpsd"
VERSION = 1
# magic, version, form, k, bits (0: one); sender, step; sequence; length, elements; payload bytes; threshold
FIELDS = struct.Struct("<4sBBBBIIQIIQd")
CHECKSUM = struct.Struct("<Q")
HEADER = FIELDS.size + CHECKSUM.size
#: If more than one element in this many is sent, a codec's dense form is used.
DENSE = 16

#: The `starts` of a vector whose tensors have no tables of levels.
NO_STARTS = np.empty(0, np.int64)


class Form(IntEnum):
    """The layout of a payload."""

    PACKED = 0
    GOLOMB_RICE = 1
    BITMAP = 2


#: By `codec`: the forms of sparse and of dense messages. Golomb–Rice is never larger, bitmap is faster.
CODECS = {
    "packed": (Form.PACKED, Form.BITMAP),
    "golomb-rice": (Form.GOLOMB_RICE, Form.GOLOMB_RICE),
    "auto": (Form.GOLOMB_RICE, Form.BITMAP),
}


class MessageHeader(NamedTuple):
    """What a message says of itself: `step` and `threshold` are those of its sender."""

    sequence: int
    step: int
    threshold: float


class CorruptMessage(ValueError):
    """A message that differs from what its sender encoded. `sender` is the rank it came from."""

    def __init__(self, sender: int, what: str) -> None:
        super().__init__(f"message from rank {sender}: {what}")
        self.sender = sender


def _payload_words(form: Form, words: Array, k: int, length: int) -> int:
    if form is Form.BITMAP:
        return bitmap.size(length, words.size)
    return words.size if form is Form.PACKED else int(golomb_rice.size(words, k))


def _decode_payload(form: int, payload: Array, k: int, length: int, words: Array) -> bool:
    if form == Form.GOLOMB_RICE:
        return k <= golomb_rice.PARAMETER_MAX and bool(golomb_rice.decode(payload, k, length, words))
    if k:
        return False
    if form == Form.PACKED:
        return payload.size == words.size and bool(_copy_ascending(payload, length, words))
    if form == Form.BITMAP:
        return payload.size == bitmap.size(length, words.size) and bool(bitmap.decode(payload, length, words))
    return False


@njit(cache=True, nogil=True)
def _copy_ascending(payload, length, words):  # type: ignore[no-untyped-def]
    """Copy the words; return False if the indices do not ascend or reach `length`."""
    previous = np.int64(-1)
    for j in range(payload.size):
        index = np.int64(payload[j] & INDEX)
        if not previous < index < length:
            return False
        previous = index
        words[j] = payload[j]
    return True


def _checksum(message: Array) -> int:
    digest = xxh3_64(message[: FIELDS.size])
    digest.update(message[HEADER:])
    return digest.intdigest()


class WireForm:
    """Encodes and decodes messages about a vector of `length` elements, of `bits` bits each, in a codec's forms.

    `codec` is one of CODECS. Tensors with tables of levels begin at `starts` int64 [tensors], the first at 0, if there
    are any.
    """

    def __init__(self, length: int, bits: int, codec: str, starts: Array = NO_STARTS) -> None:
        self.length, self.bits, self.codec, self.starts = length, bits, codec, starts
        self._bits_field = 0 if bits == 1 else bits  # in the header
        self._words = np.empty(length, np.uint32)
        self._levels = np.empty_like(self._words) if bits > 1 else NO_LEVELS
        self._tables = np.empty(starts.size * greatest_level(bits) if starts.size else 0, np.uint32)

    @property
    def capacity(self) -> int:
        """Bytes that suffice for any message, for all codecs and densities."""
        words = 2 * -(-self.length // 32) + 1 + level_form.size(self.length, self.bits - 1)
        return HEADER + 4 * (words + self._tables.size)

    def encode(self, entries: Entries, sender: int, sequence: int, step: int, threshold: float, out: Array) -> Array:
        """Write the message of `entries` into `out`, uint8 [≥ capacity]; return the part of it to send.

        The words ascend by index, as written by `accumulate`.
        """
        words, tables = entries.words, entries.tables
        levels = entries.codes if self.starts.size else entries.levels
        if not self.length <= 2**31 or (words.size and words[-1] & INDEX >= self.length):
            raise ValueError(f"{words.size} words for a vector of {self.length} elements, which holds at most 2^31")
        if levels.size != (words.size if self.bits > 1 else 0):
            raise ValueError(f"{levels.size} levels for {words.size} words of {self.bits} bits")
        form = CODECS[self.codec][DENSE * words.size > self.length]
        k = golomb_rice.parameter(words) if form is Form.GOLOMB_RICE else 0
        places = _payload_words(form, words, k, self.length)
        end = places + level_form.size(levels.size, self.bits - 1)
        size = HEADER + 4 * (end + tables.size)
        whole = out[HEADER:size].view("<u4")
        payload = whole[:places]
        if form is Form.PACKED:
            payload[:] = words
        elif form is Form.GOLOMB_RICE:
            golomb_rice.encode(words, k, payload)
        else:
            bitmap.encode(words, self.length, payload)
        if levels.size:
            level_form.encode(levels, self.bits - 1, whole[places:end])
        whole[end:] = tables
        first = MAGIC, VERSION, form, k, self._bits_field, sender, step, sequence
        FIELDS.pack_into(out, 0, *first, self.length, words.size, whole.nbytes, threshold)
        CHECKSUM.pack_into(out, FIELDS.size, _checksum(out[:size]))
        return out[:size]

    def decode(self, message: Array, sender: int) -> tuple[MessageHeader, Entries]:
        """The header and the entries, ascending by index and below `length`, valid until the next call.

        `message` is uint8, exactly as received from rank `sender`. Levels are 1 to `greatest_level(bits)`, or those of
        its tables.
        Raises CorruptMessage if any bit, length or field differs from what was encoded.
        """
        if message.size < HEADER:
            raise CorruptMessage(sender, f"{message.size} bytes are no message")
        magic, version, form, k, bits_field, *fields, payload_bytes, threshold = FIELDS.unpack_from(message)
        rank, step, sequence, vector, elements = fields
        if (magic, version) != (MAGIC, VERSION):
            raise CorruptMessage(sender, f"begins with {magic!r} version {version}, not {MAGIC!r} version {VERSION}")
        if message.size != HEADER + payload_bytes:
            raise CorruptMessage(sender, f"{message.size} bytes, its header says {HEADER + payload_bytes}")
        if CHECKSUM.unpack_from(message, FIELDS.size)[0] != _checksum(message):
            raise CorruptMessage(sender, "checksum differs")
        if rank != sender:
            raise CorruptMessage(sender, f"says it is from rank {rank}")
        if vector != self.length or elements > self.length:
            raise CorruptMessage(sender, f"{elements} elements of a vector of {vector}, ours has {self.length}")
        if not (1 <= step <= COUNT_MAX and isfinite(threshold) and threshold > 0):
            raise CorruptMessage(sender, f"step {step}, threshold {threshold}")
        if bits_field != self._bits_field:
            raise CorruptMessage(sender, f"its byte of bits an element is {bits_field}, not {self._bits_field}")
        words, tail = self._words[:elements], 4 * level_form.size(elements, self.bits - 1)
        levels = self._levels[:elements]
        whole = message.size - self._tables.nbytes
        end = whole - tail
        if (
            payload_bytes % 4
            or end < HEADER
            or not _decode_payload(form, message[HEADER:end].view("<u4"), k, self.length, words)
        ):
            raise CorruptMessage(sender, f"payload is not {elements} ascending indices in form {form}")
        if tail and not level_form.decode(message[end:whole].view("<u4"), self.bits - 1, levels):
            raise CorruptMessage(sender, f"payload does not end with {elements} levels of {self.bits} bits")
        if self.starts.size:
            self._tables[:] = message[whole:].view("<u4")
            levels = self._tables[self.places(words & INDEX, levels)]
            if not ((levels > 0) & (levels <= COUNT_MAX)).all():
                raise CorruptMessage(sender, "a level of its tables is out of range")
        return MessageHeader(sequence, step, threshold), Entries(words, levels)

    def places(self, indices: Array, codes: Array) -> Array:
        """The indices, in the tables, of the levels of elements: int64 [k]."""
        tensors = np.searchsorted(self.starts, indices, side="right") - 1
        codes = codes.astype(np.int64) - 1 if codes.size else 0
        return tensors * greatest_level(self.bits) + codes
