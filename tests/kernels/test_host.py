"""The host's own stand-in for a GPU: that it sees what it is there to see."""

from typing import Any

import numpy as np
import pytest

from mpitrain.kernels.launcher import options, source

OPTIONS = options(np.float32)
MIRROR = """
extern "C" __global__ void mirror(int *x) {
    __shared__ int all[64];
    all[threadIdx.x] = x[threadIdx.x];
    BARRIER
    x[threadIdx.x] = all[63 - threadIdx.x];
}
"""


@pytest.fixture
def cupy(stand_in: Any) -> Any:
    yield stand_in
    stand_in.Order.seed = 0


def run(cupy: Any, code: str, name: str, grid: int, block: int, *arguments: Any) -> None:
    cupy.RawModule(code=code, options=OPTIONS).get_function(name)((grid,), (block,), arguments)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_missing_barrier_is_seen(cupy: Any, seed: int) -> None:
    cupy.Order.seed = seed
    right, wrong = cupy.arange(64, dtype=np.int32), cupy.arange(64, dtype=np.int32)
    run(cupy, MIRROR.replace("BARRIER", "__syncthreads();"), "mirror", 1, 64, right)
    run(cupy, MIRROR.replace("BARRIER", ""), "mirror", 1, 64, wrong)
    assert right.tolist() == list(range(63, -1, -1))
    assert wrong.tolist() != right.tolist()


def test_shared_memory_belongs_to_a_block(cupy: Any) -> None:
    """Also while blocks take turns."""
    code = MIRROR.replace("BARRIER", "__syncthreads();").replace("x[threadIdx.x]", "x[blockIdx.x * 64 + threadIdx.x]")
    cupy.Order.seed = 5
    x = cupy.arange(64 * 20, dtype=np.int32)
    run(cupy, code, "mirror", 20, 64, x)
    np.testing.assert_array_equal(x.get(), np.arange(64 * 20).reshape(20, 64)[:, ::-1].reshape(-1))


def test_a_kernel_that_waits_for_ever_is_reported(cupy: Any) -> None:
    """And the next one runs."""
    code = """
    extern "C" __global__ void wait(unsigned *x) { while (!__any_sync(0xffffffffu, *(volatile unsigned *)x)); }
    extern "C" __global__ void lonely(unsigned *x) { if (threadIdx.x) __ballot_sync(0xffffffffu, *x); }
    """
    with pytest.raises(RuntimeError, match="wait does not end"):
        run(cupy, code, "wait", 1, 32, cupy.zeros(1, np.uint32))
    with pytest.raises(RuntimeError, match="lonely does not end"):
        run(cupy, code, "lonely", 1, 32, cupy.zeros(1, np.uint32))
    run(cupy, code, "wait", 1, 32, cupy.ones(1, np.uint32))


def test_tiles_numbered_by_block_would_wait_for_ever(cupy: Any) -> None:
    """Why residual.cu takes tickets: a block may run long before the one whose number is one less."""
    ticket = "tile = (unsigned)atomicAdd(progress, 1ull);"
    text = source("residual")
    assert ticket in text
    size, tiles = 12 * 4096, 12
    cupy.Order.seed = 1
    arrays = [cupy.zeros(size, kind) for kind in (np.float32, np.float32, np.uint32)]
    rest = (
        cupy.zeros(2, np.uint32),
        cupy.zeros(tiles + 1, np.uint64),
        np.int64(size),
        *map(np.float32, (1, 1, 1, np.inf)),
    )
    with pytest.raises(RuntimeError, match="accumulate does not end"):
        run(cupy, text.replace(ticket, "tile = blockIdx.x;"), "accumulate", tiles, 256, *arrays, *rest)


def test_arguments_must_be_what_the_kernel_takes(cupy: Any) -> None:
    code = source("updates")
    x, size = cupy.zeros(8, np.float32), np.int64(8)
    run(cupy, code, "sgd", 1, 32, x, x, size, np.float32(1))
    for odd in (8, np.int32(8), np.uint64(8)):
        with pytest.raises(TypeError, match="of type i8"):
            run(cupy, code, "sgd", 1, 32, x, x, odd, np.float32(1))
    with pytest.raises(TypeError, match="of type pf4"):
        run(cupy, code, "sgd", 1, 32, x, cupy.zeros(8, np.float64), size, np.float32(1))
    with pytest.raises(TypeError, match="4 arguments, not 3"):
        run(cupy, code, "sgd", 1, 32, x, x, size)


def test_arrays_keep_to_themselves(cupy: Any) -> None:
    """As CuPy's, they become NumPy arrays only when asked, and meet none."""
    x = cupy.arange(6, dtype=np.float32).reshape(2, 3)
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(x)
    with pytest.raises(TypeError, match="Unsupported type"):
        x + np.ones((2, 3))
    total = np.sum(x, axis=0, out=cupy.empty(3, np.float32))
    assert isinstance(total, cupy.ndarray) and total.tolist() == [3, 5, 7]
    assert isinstance(x.sum(), cupy.ndarray) and float(x.sum()) == 15
    x[0] -= 1
    np.multiply(x, 2, out=x)
    assert x.get().tolist() == [[-2, 0, 2], [6, 8, 10]]
    interface = x.__cuda_array_interface__
    assert (interface["shape"], interface["typestr"], interface["data"][0]) == ((2, 3), "<f4", x.data.ptr)


def test_a_copy_on_a_stream_is_made_when_it_is_waited_for(cupy: Any) -> None:
    host, stream = np.arange(3, dtype=np.float32), cupy.cuda.Stream(non_blocking=True)
    x = cupy.zeros(3, np.float32)
    x.set(host, stream=stream)
    assert x.tolist() == [0, 0, 0]
    event = stream.record()
    host[:] = 7  # too early: the copy has not been made
    event.synchronize()
    assert x.tolist() == [7, 7, 7]
    out = np.zeros(3, np.float32)
    x.get(stream=stream, out=out, blocking=False)
    assert not out.any()
    with stream:
        x.fill(1)  # comes after the copy
    assert out.tolist() == [7, 7, 7]
