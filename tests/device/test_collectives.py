"""Collectives on device arrays against the same on host arrays; started in order, whichever input is final first."""

from typing import Any

import numpy as np
import pytest

from mpitrain.device.collectives import StagedTransport
from mpitrain.device.gpu import Gpu
from mpitrain.mpi import Transport

pytestmark = pytest.mark.mpi(min_size=2)


def own(transport: Transport, *shape: int) -> np.ndarray:
    """This rank's numbers."""
    return np.random.default_rng(transport.rank).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("direct", [False, True])
def test_all_of_them(transport: Transport, gpu: Gpu, direct: bool) -> None:
    size, rank = transport.size, transport.rank
    counts = [3 + each for each in range(size)]
    total, mine = sum(counts), slice(sum(counts[:rank]), sum(counts[: rank + 1]))

    def run(way: Any, place: Any) -> list[Any]:
        """One after another without waiting, host arrays among them."""
        x = own(transport, total)
        summed, greatest, spread, everywhere = place(x), place(x), place(x), place(x)
        at_root, share, gathered = place(np.zeros_like(x)), place(np.zeros(counts[rank], np.float32)), place(0 * x)
        on_host = x.copy()
        requests = [
            way.start_sum(summed),
            way.start_maximum(greatest),
            way.start_sum(on_host),
            way.start_broadcast(spread, size - 1),
            way.start_sum_at(0, place(x), at_root if rank == 0 else None),
            way.start_gather(place(x[mine].copy()), gathered, counts),
            way.start_gather(None, everywhere, counts),
            way.start_scattered_sum(place(x), share, counts),
        ]
        for request in reversed(requests):  # waiting for the last moves the first
            transport.wait(request, "a collective")
        return [summed, greatest, on_host, spread, at_root, gathered, everywhere, share]

    expected = run(transport, lambda array: array.copy())
    found = run(StagedTransport(transport, gpu, direct), gpu.place)
    for there, here in zip(found, expected, strict=True):
        np.testing.assert_allclose(there if isinstance(there, np.ndarray) else there.get(), here, rtol=1e-5, atol=1e-6)


def test_a_sum_takes_what_kernels_before_it_wrote_and_kernels_after_it_see_the_sum(
    transport: Transport, gpu: Gpu
) -> None:
    staged, x = StagedTransport(transport, gpu), gpu.place(np.ones(5, np.float32))
    np.multiply(x, 3, out=x)
    transport.wait(staged.start_sum(x), "the sum")
    np.testing.assert_array_equal(np.add(x, 1).get(), np.full(5, 3 * transport.size + 1))


def test_all_else_is_the_transports_own(transport: Transport, gpu: Gpu) -> None:
    staged = StagedTransport(transport, gpu)
    assert (staged.rank, staged.size, staged.traffic) == (transport.rank, transport.size, transport.traffic)
    staged.deadline = 29.0
    assert transport.deadline == 29.0
