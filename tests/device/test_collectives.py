"""Collectives on device arrays against the same on host arrays; started in order, whichever input is final first."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mpitrain.device.collectives import DirectCarrier, StagedCarrier
from mpitrain.device.gpu import Gpu
from mpitrain.errors import Overdue
from mpitrain.mpi import Transport

pytestmark = pytest.mark.mpi(min_size=2)
on_device = pytest.mark.usefixtures("aware")


def own(transport: Transport, *shape: int) -> np.ndarray:
    """This rank's numbers."""
    return np.random.default_rng(transport.rank).standard_normal(shape).astype(np.float32)


def directly(transport: Transport, gpu: Gpu) -> Transport:
    """With collectives of device arrays that are made of messages."""
    return transport.carried(DirectCarrier(transport, gpu))


def staged(transport: Transport, gpu: Gpu) -> Transport:
    """With collectives of device arrays by way of the host."""
    return transport.carried(StagedCarrier(transport, gpu))


Kind = Callable[[Transport, Gpu], Transport]


@pytest.fixture
def kind(direct: bool) -> Kind:
    """Both."""
    return directly if direct else staged


def test_all_of_them(transport: Transport, gpu: Gpu, kind: Kind) -> None:
    size, rank = transport.size, transport.rank
    counts = [3 + each for each in range(size)]
    total, mine = sum(counts), slice(sum(counts[:rank]), sum(counts[: rank + 1]))

    def run(way: Any, to_device: Any) -> tuple[list[Any], list[int]]:
        """One after another without waiting, host arrays among them: the arrays, and what was counted."""
        before = transport.traffic.bytes_sent, transport.traffic.bytes_received, transport.traffic.messages_sent
        x = own(transport, total)
        summed, greatest, spread, everywhere = to_device(x), to_device(x), to_device(x), to_device(x)
        at_root, share, gathered = (
            to_device(np.zeros_like(x)),
            to_device(np.zeros(counts[rank], np.float32)),
            to_device(0 * x),
        )
        on_host = x.copy()
        requests = [
            way.start_sum(summed),
            way.start_maximum(greatest),
            way.start_sum(on_host),
            way.start_broadcast(spread, size - 1),
            way.start_reduce(0, to_device(x), at_root if rank == 0 else None),
            way.start_gather(to_device(x[mine].copy()), gathered, counts),
            way.start_gather(None, everywhere, counts),
            way.start_reduce_scatter(to_device(x), share, counts),
        ]
        for request in reversed(requests):  # waiting for the last moves the first
            transport.wait(request, "a collective")
        after = transport.traffic.bytes_sent, transport.traffic.bytes_received, transport.traffic.messages_sent
        counted = [now - then for now, then in zip(after, before, strict=True)]
        return [summed, greatest, on_host, spread, at_root, gathered, everywhere, share], counted

    expected, payload = run(transport, lambda array: array.copy())
    found, counted = run(kind(transport, gpu), gpu.to_device)
    assert counted == payload
    for there, here in zip(found, expected, strict=True):
        np.testing.assert_allclose(there if isinstance(there, np.ndarray) else there.get(), here, rtol=1e-5, atol=1e-6)


#: A collective of `there`, whose elements are all the rank + 1; what comes of it, there or in `out`.
LATE: dict[str, tuple[Callable[..., Any], Callable[[int], Any]]] = {
    "sum": (lambda way, there, out: way.start_sum(there), lambda size: size * (size + 1) // 2),
    "maximum": (lambda way, there, out: way.start_maximum(there), lambda size: size),
    "broadcast": (lambda way, there, out: way.start_broadcast(there, way.size - 1), lambda size: size),
    "sum at": (
        lambda way, there, out: way.start_reduce(0, there, out if way.rank == 0 else None),
        lambda size: size * (size + 1) // 2,
    ),
    "gather": (
        lambda way, there, out: way.start_gather(there[: way.rank + 1], out, [each + 1 for each in range(way.size)]),
        lambda size: np.repeat(np.arange(1, size + 1), np.arange(1, size + 1)),
    ),
    "gather in place": (
        lambda way, there, out: way.start_gather(None, there, [each + 1 for each in range(way.size)]),
        lambda size: np.repeat(np.arange(1, size + 1), np.arange(1, size + 1)),
    ),
}


@pytest.mark.parametrize("name", LATE)
def test_it_takes_what_kernels_before_it_wrote_and_kernels_after_it_see_the_result(
    transport: Transport, gpu: Gpu, kind: Kind, name: str
) -> None:
    """On the stand-in, what is set in a stream is there when that is waited for."""
    start, result = LATE[name]
    size, rank = transport.size, transport.rank
    length = size * (size + 1) // 2
    there, out = gpu.to_device(np.full(length, np.nan)), gpu.to_device(np.full(length, np.nan))
    there.set(np.full(length, rank + 1.0), stream=gpu.compute)
    transport.wait(start(kind(transport, gpu), there, out), "a collective")
    after = there if name in ("sum", "maximum", "broadcast", "gather in place") else out
    if rank == 0 or name != "sum at":
        np.testing.assert_array_equal(np.add(after, 1).get(), np.full(length, 1.0) + result(size))


def test_kernels_stay_in_the_compute_stream(transport: Transport, gpu: Gpu, kind: Kind) -> None:
    transport.wait(kind(transport, gpu).start_sum(gpu.to_device(np.ones(9, np.float32))), "the sum")
    assert gpu.cupy.cuda.get_current_stream() == gpu.compute


def test_a_reduce_scatter_of_late_terms(transport: Transport, gpu: Gpu, kind: Kind) -> None:
    there, share = gpu.to_device(np.full(transport.size, np.nan)), gpu.to_device(np.full(1, np.nan))
    there.set(np.arange(transport.size) + 1.0, stream=gpu.compute)
    request = kind(transport, gpu).start_reduce_scatter(there, share, [1] * transport.size)
    transport.wait(request, "the sum")
    assert np.add(share, 1).get() == transport.size * (transport.rank + 1) + 1


def test_what_kernels_before_it_still_read_is_not_overwritten(transport: Transport, gpu: Gpu, kind: Kind) -> None:
    there, read = gpu.to_device(np.full(9, float(transport.rank))), gpu.pinned(9, np.float64)
    there.get(stream=gpu.compute, out=read, blocking=False)
    transport.wait(kind(transport, gpu).start_broadcast(there, 0), "a collective")
    gpu.compute.synchronize()
    np.testing.assert_array_equal(read, np.full(9, float(transport.rank)))
    np.testing.assert_array_equal(there.get(), np.zeros(9))


def test_arrays_shorter_than_ranks_and_ranks_without_a_piece(transport: Transport, gpu: Gpu, kind: Kind) -> None:
    way, size, rank = kind(transport, gpu), transport.size, transport.rank
    counts = [0] * (size - 1) + [2]
    one, spread, gathered = (
        gpu.to_device(np.ones(1, np.float32)),
        gpu.to_device(own(transport, 1)),
        gpu.to_device(np.zeros(2)),
    )
    piece = gpu.to_device(np.full(counts[rank], 7.0))
    requests = [way.start_sum(one), way.start_broadcast(spread, 0), way.start_gather(piece, gathered, counts)]
    for request in requests:
        transport.wait(request, "a collective")
    assert one.get() == size and spread.get() == np.random.default_rng(0).standard_normal(1).astype(np.float32)
    np.testing.assert_array_equal(gathered.get(), [7, 7])


def test_waiting_for_one_moves_the_twins(transport: Transport, gpu: Gpu, kind: Kind) -> None:
    way = kind(transport, gpu)
    duplicate = way.duplicate()
    x, y = gpu.to_device(np.ones(3, np.float32)), gpu.to_device(np.ones(3, np.float32))
    first, then = way.start_sum(x), duplicate.start_sum(y)
    transport.until(lambda: then.Test() and first.done, "the sums, of which only the second is tested")
    np.testing.assert_array_equal(x.get() + y.get(), np.full(3, 2.0 * transport.size))


@on_device
def test_sums_from_device_memory_have_the_same_bits_everywhere(transport: Transport, gpu: Gpu) -> None:
    way, x = directly(transport, gpu), gpu.to_device(1e3 * own(transport, 1037))
    transport.wait(way.start_sum(x), "the sum")
    bits = x.get().tobytes().hex()
    assert set(transport.gather_texts(bits, "the bits")) == {bits}


@on_device
def test_a_rank_that_stays_away_is_overdue(transport: Transport, gpu: Gpu) -> None:
    """Nothing blocks; and when it comes, all goes on."""
    way, x, deadline = directly(transport, gpu), gpu.to_device(np.ones(9, np.float32)), transport.deadline
    if transport.rank:
        request, transport.deadline = way.start_sum(x), 0.2
        with pytest.raises(Overdue, match=rf"rank {transport.rank}: waited 0.2 s for ranks? 0.* \(the sum\)"):
            transport.wait(request, "the sum")
        transport.deadline = deadline
    transport.barrier("all to have lost patience")
    if transport.rank == 0:
        request = way.start_sum(x)
    transport.wait(request, "the sum")
    np.testing.assert_array_equal(x.get(), np.full(9, transport.size))


@on_device
def test_each_step_has_messages_of_its_own(transport: Transport, gpu: Gpu) -> None:
    """The first rank is in two sums' first steps before the others are in the first sum's second."""
    way, x, y = (
        directly(transport, gpu),
        gpu.to_device(np.ones(9, np.float32)),
        gpu.to_device(np.full(9, 7, np.float32)),
    )

    def start(*arrays: Any) -> list[Any]:
        requests = [way.start_sum(array) for array in arrays]
        for request in requests * 99:
            request.Test()
        return requests

    requests = start(x, y) if transport.rank == 0 else []
    transport.barrier("the first rank to be ahead")
    if transport.rank:
        requests = start(x) + start(y)
    for request in requests:
        transport.wait(request, "a sum")
    np.testing.assert_array_equal(x.get(), np.full(9, transport.size))
    np.testing.assert_array_equal(y.get(), np.full(9, 7 * transport.size))


@on_device
def test_memory_is_asked_for_once(transport: Transport, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    plain = gpu.cupy.empty
    monkeypatch.setattr(gpu.cupy, "empty", lambda *given: asked.append(given) or plain(*given))
    way, x, y = (
        directly(transport, gpu),
        gpu.to_device(np.ones(99, np.float32)),
        gpu.to_device(np.ones(99, np.float32)),
    )
    asked.clear()
    for _ in range(5):
        transport.wait(way.start_sum(x), "the sum")
        transport.wait(way.start_reduce(0, y, x if transport.rank == 0 else None), "the sum")
    assert len(asked) == (1 if transport.rank == 0 else 2)


def test_all_else_is_the_transports_own(transport: Transport, gpu: Gpu) -> None:
    there = staged(transport, gpu)
    assert (there.rank, there.size, there.traffic) == (transport.rank, transport.size, transport.traffic)
    assert there.heartbeats is transport.heartbeats and there.numbers is transport.numbers
