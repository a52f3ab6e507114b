"""Messages on the wire: what goes in comes out, anything else names its sender."""

import math
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpitrain.device import CPU
from mpitrain.errors import WireError
from mpitrain.mpi.tags import Tag
from mpitrain.protocols import messages
from mpitrain.protocols.messages import TO_MASTER, TO_NEXT, Channel, Envelope, Gradient, Message, Token, pack
from mpitrain.sampling.queue import Work

integers = st.integers(-(2**63), 2**63 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
works = st.builds(Work, integers, integers, integers, integers)
FIELDS: dict[Any, st.SearchStrategy[Any]] = {
    int: integers,
    messages.Count: st.integers(0, 2**64 - 1),
    float: st.floats(allow_nan=False),
    messages.Finite: finite,
    float | None: st.none() | st.floats(allow_nan=False),
    bool: st.booleans(),
    str: st.text(),
    **dict.fromkeys((Work, Work | None), works),
    tuple[Work, ...]: st.lists(works, max_size=3).map(tuple),
    messages.Amounts: st.dictionaries(st.text(), st.tuples(finite, st.integers(0, 2**64 - 1))),
    messages.Reason: st.sampled_from(get_args(messages.Reason)),
}


def told(kind: type[Message]) -> st.SearchStrategy[Message]:
    """Any message of a kind."""
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: FIELDS[hints[name]] for name in kind.__struct_fields__})


CHANNELS = [each for each in vars(messages).values() if isinstance(each, Channel)]
envelopes = st.sampled_from(CHANNELS).flatmap(
    lambda channel: st.tuples(
        st.just(channel),
        st.builds(Envelope, st.sampled_from(channel.kinds).flatmap(told), st.booleans(), finite),
    )
)


def packed(envelope: Envelope[Any]) -> bytes:
    """As it travels."""
    return pack(envelope.message, envelope.stopping, envelope.traffic)


def test_every_kind_has_a_tag_and_no_tag_is_used_twice() -> None:
    """The table holds them all."""
    assert {kind for channel in CHANNELS for kind in channel.kinds} == set(Message.__subclasses__())
    assert len({channel.tag for channel in CHANNELS}) == len(CHANNELS) and len(set(Tag)) == len(Tag.__members__)


@given(envelopes)
def test_round_trip(case: tuple[Channel[Any], Envelope[Any]]) -> None:
    """Every field of every kind."""
    channel, envelope = case
    assert channel.unpack(packed(envelope), 3) == envelope


@given(envelopes, st.data())
def test_a_changed_byte_is_seen(case: tuple[Channel[Any], Envelope[Any]], data: st.DataObject) -> None:
    """Any one, anywhere; the sender is named."""
    message = bytearray(packed(case[1]))
    message[data.draw(st.integers(0, len(message) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(WireError, match="rank 5"):
        case[0].unpack(bytes(message), 5)


@given(envelopes)
def test_every_cut_is_seen(case: tuple[Channel[Any], Envelope[Any]]) -> None:
    """Wherever; and a byte too many."""
    message = packed(case[1])
    for part in [*(message[:end] for end in range(len(message))), message + b"\0"]:
        with pytest.raises(WireError, match="rank 5"):
            case[0].unpack(part, 5)


@given(st.binary(max_size=200))
def test_noise_is_no_message(noise: bytes) -> None:
    """Whatever its length."""
    for channel in CHANNELS:
        with pytest.raises(WireError, match="rank 2"):
            channel.unpack(noise, 2)


@given(envelopes)
def test_a_message_under_another_tag_is_seen(case: tuple[Channel[Any], Envelope[Any]]) -> None:
    """Whole as it is."""
    for channel in CHANNELS:
        if type(case[1].message) not in channel.kinds:
            with pytest.raises(WireError, match="rank 4"):
                channel.unpack(packed(case[1]), 4)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_seen(number: float) -> None:
    """But for the loss of a gradient, which the server refuses by itself; NumPy's numbers travel as plain ones."""
    work = Work(0, 0, 8, 8)
    with pytest.raises(WireError, match="rank 1"):
        TO_MASTER.unpack(pack(Gradient(0, work), traffic=number), 1)
    loss: Any = np.float64(number)
    received = TO_MASTER.unpack(pack(Gradient(0, work, loss=loss)), 1).message
    assert isinstance(received, Gradient) and str(received.loss) == str(number)


def test_less_than_nothing_is_seen() -> None:
    """Counts are counts."""
    with pytest.raises(WireError, match="rank 1"):
        TO_NEXT.unpack(pack(Token(-1)), 1)


def test_a_checksum_tells_vectors_apart() -> None:
    """One bit in a long vector."""
    vector = np.zeros(1000, np.float32)
    before = CPU.checksum(vector)
    vector[500] = 1e-40
    assert CPU.checksum(vector) != before
