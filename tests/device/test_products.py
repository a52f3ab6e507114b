"""Products by cuBLAS: every way the operands and the result can lie in memory."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from mpitrain.device.cpu import CPU
from mpitrain.device.gpu import Gpu
from mpitrain.device.operations import Products
from mpitrain.flat import on_host
from mpitrain.models import partition
from mpitrain.models.design import Design
from mpitrain.models.layers.fully_connected import FullyConnectedOptions
from mpitrain.models.layers.relu import ReluOptions
from mpitrain.models.network import network
from mpitrain.sampling.batch import Batch


def lying(gpu: Gpu, host: np.ndarray, turned: bool) -> Any:
    """A device matrix of these values, rows first, or `turned`, columns first."""
    return gpu.to_device(np.ascontiguousarray(host.T)).T if turned else gpu.to_device(host)


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 4, 5), (3, 1, 5), (3, 4, 1), (1, 1, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_product_is_numpys(gpu: Gpu, shape: tuple[int, int, int], dtype: str) -> None:
    rows, depth, columns = shape
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((rows, depth)).astype(dtype), rng.standard_normal((depth, columns)).astype(dtype)
    for turned in product((False, True), repeat=3):
        out = lying(gpu, np.full((rows, columns), 9, dtype), turned[2])
        gpu.ops.matmul(lying(gpu, a, turned[0]), lying(gpu, b, turned[1]), out)
        np.testing.assert_allclose(out.get(), a @ b, rtol=1e-5, atol=1e-6 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_lower_precision_keeps_operands_and_result_in_float32(cupy: Any, gpu: Gpu, precision: str) -> None:
    a, b = np.eye(4, dtype=np.float32), np.arange(16, dtype=np.float32).reshape(4, 4)
    out = gpu.to_device(np.zeros((4, 4), np.float32))
    Products(cupy, precision)(gpu.to_device(a), gpu.to_device(b), out)
    np.testing.assert_array_equal(out.get(), b)  # small integers are exact in each of them


def test_parts_of_rows_are_operands_and_results(gpu: Gpu) -> None:
    """As the columns of a fully connected layer; beside the result nothing changes."""
    host = np.arange(64, dtype=np.float32).reshape(8, 8)
    for turned in product((False, True), repeat=3):
        a, b, out = (
            lying(gpu, each, t) for each, t in zip((host, host + 1, np.full_like(host, 9)), turned, strict=True)
        )
        gpu.ops.matmul(a[2:5, 3:7], b[1:5, 6:8], out[4:7, 1:3])
        expected = np.full_like(host, 9)
        expected[4:7, 1:3] = host[2:5, 3:7] @ (host + 1)[1:5, 6:8]
        np.testing.assert_array_equal(out.get(), expected)


def test_a_matrix_with_gaps_is_refused(gpu: Gpu) -> None:
    square = gpu.to_device(np.zeros((4, 4), np.float32))
    with pytest.raises(ValueError, match="neither rows nor columns"):
        gpu.ops.matmul(square[:, ::2], square[:2], gpu.to_device(np.zeros((4, 4), np.float32)))


def test_a_product_is_added_for_more_rows_than_a_block_has(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the weight gradient of a hybrid's first fully connected layer, whose inputs lie transposed."""
    monkeypatch.setattr(partition, "BLOCK", 1)
    rng, rows = np.random.default_rng(1), 3 * partition.ROWS
    a, b = rng.standard_normal((2, rows)).astype(np.float32), rng.standard_normal((2, 3)).astype(np.float32)
    out = gpu.to_device(np.ones((rows, 3), np.float32))
    partition.add_product(gpu.to_device(a).T, gpu.to_device(b), out, gpu.workspace(), None)
    np.testing.assert_allclose(out.get(), 1 + a.T @ b, rtol=1e-4, atol=1e-5)


def test_a_layer_in_columns_is_the_cpus(gpu: Gpu) -> None:
    """Outputs and gradients of columns of inputs that are images, and of outputs in columns."""
    layers = [FullyConnectedOptions(6, columns=3), ReluOptions(), FullyConnectedOptions(columns=2)]
    rng, found = np.random.default_rng(1), []
    inputs, targets = rng.standard_normal((5, 2, 3, 2)).astype(np.float32), np.array([0, 1, 2, 3, 1], np.int32)
    for device in (CPU, gpu):
        made = network(Design(layers, "softmax", 0.01), (2, 3, 2), 4, device.workspace())
        theta = device.to_device(made.initial(3))
        gradient = device.to_device(np.full(made.layout.size, np.nan, np.float32))
        loss = made.loss_and_gradient(theta, gradient, Batch(*map(device.to_device, (inputs, targets))))
        found.append(np.append(on_host(gradient), float(loss)))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)
