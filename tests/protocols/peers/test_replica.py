"""What a replica refuses: wrong order, wrong deltas, wrong networks, wrong weights."""

import numpy as np
import pytest

from mpitrain.compression import message as wire_form
from mpitrain.compression.replica import digest, digest_change
from mpitrain.compression.residual import NO_LEVELS, Entries
from mpitrain.compression.thresholds import round_weights
from mpitrain.errors import TrainingFailed, WireError
from mpitrain.protocols.peers.replica import TRAILER, Replica, odd_ones

LENGTH = 1000


def replica(rank: int, length: int = LENGTH, bits: int = 1) -> Replica:
    """A replica of the same weights on every rank."""
    theta = np.random.default_rng(1).standard_normal(length).astype(np.float32)
    counts = np.empty(length, np.int32)
    round_weights(theta, counts)
    return Replica(theta, counts, [0, 1, 2], rank, wire_form.WireForm(length, bits, "auto"))


def words(*elements: int) -> np.ndarray:
    """Words of signed elements, given as ±(index + 1)."""
    return np.array([abs(e) - 1 | (0x80000000 if e < 0 else 0) for e in elements], dtype=np.uint32)


def sent(sender: Replica, elements: np.ndarray, step: int = 100, levels: list[int] | None = None) -> np.ndarray:
    """A message as it goes over the wire."""
    out = np.empty(sender.wire.capacity + TRAILER.size, np.uint8)
    entries = Entries(elements, np.array(levels or [], np.uint32))
    sender.apply_own(entries, step)
    return sender.write(entries, step, 1.0, False, out).copy()


def test_any_order_of_senders_gives_the_same_bits() -> None:
    """Replicas, hashes and digests agree, with different steps."""
    zero, one, two = (replica(rank) for rank in range(3))
    from_one = [sent(one, words(1, -5, 1000), 17), sent(one, words(2, 5), 90)]
    from_two = [sent(two, words(-1, 7), 1 << 20)]
    for message, sender in ((from_one[0], 1), (from_two[0], 2), (from_one[1], 1)):
        zero.read(message, sender)
    one.read(from_two[0], 2)
    for message in from_one:
        two.read(message, 1)
    assert zero.hash() == one.hash() == two.hash() and zero.weights.tobytes() == two.weights.tobytes()
    for each in (zero, one, two):
        each.check()


@pytest.mark.parametrize("bits", [2, 4, 32])
def test_levels_of_any_bits_give_the_same_replica_and_digest(bits: int) -> None:
    """As the same moves sent one at a time by a sender of one bit; and messages of other bits are refused."""
    many, receiver, one, other = replica(1, bits=bits), replica(0, bits=bits), replica(1), replica(0)
    receiver.read(sent(many, words(1, -5, 1000), 17, [1, 2, 1]), 1)
    for elements in (words(1, -5, 1000), words(-5)):
        other.read(sent(one, elements, 17), 1)
    assert receiver.hash() == other.hash() == many.hash() and receiver.sums == other.sums
    receiver.check()
    with pytest.raises(WireError, match="bits an element"):
        other.read(sent(many, words(2), 17, [2]), 1)


@pytest.mark.parametrize(("order", "what"), [((1,), "lost"), ((0, 0), "twice"), ((0, 2), "lost")])
def test_gaps_and_duplicates_name_the_sender(order: tuple[int, ...], what: str) -> None:
    """By the sequence number."""
    one, receiver = replica(1), replica(0)
    messages = [sent(one, words(k + 1)) for k in range(3)]
    with pytest.raises(WireError, match=f"from rank 1.*{what}"):
        for number in order:
            receiver.read(messages[number], 1)


def test_an_index_out_of_range_is_an_error_that_names_the_sender() -> None:
    """Whole by its checksum, made for a vector of 1000, with the index 1200 patched in."""
    longer = wire_form.WireForm(2000, 1, "packed")
    whole = longer.encode(Entries(words(3, 1201)), 1, 0, 5, 1.0, np.empty(longer.capacity, np.uint8))
    fields = list(wire_form.FIELDS.unpack_from(whole))
    fields[8] = LENGTH
    wire_form.FIELDS.pack_into(whole, 0, *fields)
    wire_form.CHECKSUM.pack_into(whole, wire_form.FIELDS.size, wire_form._checksum(whole))
    receiver = replica(0)
    before = receiver.hash()
    with pytest.raises(WireError, match="rank 1"):
        receiver.read(np.append(whole, np.zeros(TRAILER.size, np.uint8)), 1)
    assert receiver.hash() == before


def test_another_network_is_an_error_that_names_the_sender() -> None:
    """By the length in the header; and a message too short for its trailer."""
    with pytest.raises(WireError, match=r"rank 1.*1001"):
        replica(0).read(sent(replica(1, LENGTH + 1), words(1)), 1)
    with pytest.raises(WireError, match="rank 2"):
        replica(0).read(np.zeros(3, np.uint8), 2)


def test_a_replica_that_diverged_names_its_rank() -> None:
    """A flipped count, a flipped weight, and deltas that the sender did not apply to itself."""
    for spoil, match in (
        (lambda r: r.counts.__setitem__(7, 5), "rank 2"),
        (lambda r: r.weights.__setitem__(7, 5), "7"),
    ):
        spoilt = replica(2)
        spoil(spoilt)
        with pytest.raises(TrainingFailed, match=match):
            spoilt.check()
    one, receiver = replica(1), replica(0)
    one.sums[1] += 1
    with pytest.raises(WireError, match="other deltas of rank 1"):
        receiver.read(sent(one, words(4)), 1)


def test_the_digest_by_numpy() -> None:
    """Σ c·k modulo 2⁶⁴ with k = x ^ x>>29, x = (i+1)·0x9E3779B97F4A7C15; deltas change it by what they do."""
    r = replica(0)
    with np.errstate(over="ignore"):
        x = np.arange(1, LENGTH + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        total = int((r.counts.astype(np.int64).view(np.uint64) * (x ^ (x >> np.uint64(29)))).sum())
    assert digest(r.counts, r.weights) == (total, -1)
    r.apply_own(Entries(words(1, -3, 1000)), 12345)
    assert digest(r.counts, r.weights)[0] == (total + digest_change(words(1, -3, 1000), 12345, NO_LEVELS)) % 2**64


def test_the_odd_ones_are_those_unlike_most() -> None:
    """None when all are alike."""
    assert odd_ones(["a", "b", "a"]) == [1]
    assert odd_ones(["a"] * 3) == []
