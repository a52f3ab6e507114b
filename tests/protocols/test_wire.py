"""Notes on the wire: what goes in comes out, anything else names its sender."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpitrain.device import CPU
from mpitrain.errors import WireError
from mpitrain.protocols.wire import Kind, Note, unpack

numbers = st.integers(-(2**63), 2**63 - 1)
notes = st.builds(
    Note,
    kind=st.sampled_from(Kind),
    index=numbers,
    start=numbers,
    count=numbers,
    loss=st.floats(allow_nan=False),
    checksum=st.integers(0, 2**64 - 1),
)


@given(notes)
def test_round_trip(note: Note) -> None:
    """Every field."""
    assert unpack(note.pack(), 3) == note


@given(notes, st.data())
def test_a_changed_byte_is_seen(note: Note, data: st.DataObject) -> None:
    """Any one, anywhere; the sender is named."""
    message = bytearray(note.pack())
    message[data.draw(st.integers(0, len(message) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(WireError, match="rank 5"):
        unpack(bytes(message), 5)


@given(st.binary(max_size=200))
def test_noise_is_no_note(message: bytes) -> None:
    """Whatever its length."""
    with pytest.raises(WireError, match="rank 2"):
        unpack(message, 2)


def test_a_checksum_tells_vectors_apart() -> None:
    """One bit in a long vector."""
    vector = np.zeros(1000, np.float32)
    before = CPU.checksum(vector)
    vector[500] = 1e-40
    assert CPU.checksum(vector) != before
