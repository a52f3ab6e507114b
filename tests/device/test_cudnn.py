"""Convolutions through a stand-in for cudnn-frontend that sees what cuDNN would: addresses, dimensions, strides.

With `--device gpu` through cuDNN itself, where it is installed.
"""

import ctypes
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest

from mpitrain.device.cudnn import CudnnProduct, CudnnProducts
from mpitrain.device.gpu import Gpu
from mpitrain.models.layers.convolution import ConvolutionOptions
from mpitrain.models.network import build
from mpitrain.models.patches import PatchProduct
from mpitrain.models.workspace import Patches
from mpitrain.training.pretraining import grown


class Unsupported(Exception):
    """As cudnnGraphNotSupportedError."""


class Tensor:
    """Dimensions and strides, in elements."""

    def __init__(self, dim: list[int] | None = None, stride: list[int] | None = None, data_type: Any = None) -> None:
        self.dim, self.stride = dim, stride

    def __getattr__(self, name: str) -> Any:
        def change(value: Any) -> "Tensor":
            setattr(self, name.removeprefix("set_"), value)
            return self

        return change

    def at(self, address: int) -> np.ndarray:
        """The float32 array there."""
        assert self.dim and self.stride
        size = 1 + sum((d - 1) * s for d, s in zip(self.dim, self.stride, strict=True))
        flat = np.ctypeslib.as_array((ctypes.c_float * size).from_address(address))
        return np.lib.stride_tricks.as_strided(flat, self.dim, [4 * s for s in self.stride])


class Graph:
    """One convolution, or a gradient of it, on arrays [n, c, h, w] and [k, c, r, s]."""

    def __init__(self, **_: Any) -> None:
        self.notes: list[str] = []

    def tensor(self, **how: Any) -> Tensor:
        return Tensor(**how)

    def _remember(self, kind: str, first: Tensor, second: Tensor, pad: list[int], stride: list[int]) -> Tensor:
        self._kind, self._operands, self._pad, self._stride, self._out = (
            kind,
            (first, second),
            pad[0],
            stride[0],
            Tensor(),
        )
        return self._out

    def conv_fprop(self, image: Tensor, weight: Tensor, padding: Any, stride: Any, dilation: Any) -> Tensor:
        return self._remember("fprop", image, weight, padding, stride)

    def conv_dgrad(self, loss: Tensor, filter: Tensor, padding: Any, stride: Any, dilation: Any) -> Tensor:
        return self._remember("dgrad", loss, filter, padding, stride)

    def conv_wgrad(self, image: Tensor, loss: Tensor, padding: Any, stride: Any, dilation: Any) -> Tensor:
        return self._remember("wgrad", image, loss, padding, stride)

    def deselect_numeric_notes(self, notes: list[str]) -> None:
        self.notes += notes

    def check_support(self) -> None:
        if self._kind == Cudnn.lacks:
            raise Cudnn.refusal(self._kind)

    def validate(self) -> None:
        assert "nondeterministic" not in self.notes

    def build_operation_graph(self) -> None:
        pass

    def create_execution_plans(self, modes: list[str]) -> None:
        assert modes == ["A", "FALLBACK"]

    def build_plans(self) -> None:
        assert set(self.notes) == {"nondeterministic", "tensor core", "down convert"}

    def get_workspace_size(self) -> int:
        return 16

    def execute(self, pointers: dict[Tensor, int], workspace: int, handle: Any) -> None:
        sys.modules["fake_cupy"].cuda.get_current_stream().synchronize()
        a, b = (tensor.at(pointers[tensor]) for tensor in self._operands)
        out, p, t = self._out.at(pointers[self._out]), self._pad, self._stride
        if self._kind == "fprop":
            padded = np.pad(a, ((0, 0), (0, 0), (p, p), (p, p)))
            for y, x in np.ndindex(out.shape[2:]):
                window = padded[:, :, y * t : y * t + b.shape[2], x * t : x * t + b.shape[3]]
                out[:, :, y, x] = np.einsum("ncrs,kcrs->nk", window, b)
        elif self._kind == "wgrad":
            padded = np.pad(a, ((0, 0), (0, 0), (p, p), (p, p)))
            out[:] = 0
            for y, x in np.ndindex(b.shape[2:]):
                window = padded[:, :, y * t : y * t + out.shape[2], x * t : x * t + out.shape[3]]
                out += np.einsum("ncrs,nk->kcrs", window, b[:, :, y, x])
        else:
            padded = np.zeros((*out.shape[:2], out.shape[2] + 2 * p, out.shape[3] + 2 * p), np.float32)
            for y, x in np.ndindex(a.shape[2:]):
                term = np.einsum("nk,kcrs->ncrs", a[:, :, y, x], b)
                padded[:, :, y * t : y * t + b.shape[2], x * t : x * t + b.shape[3]] += term
            out[:] = padded[:, :, p : p + out.shape[2], p : p + out.shape[3]]


class Cudnn:
    """The module. `lacks`: what it has no kernel for; `refusal`: what it raises then."""

    lacks = ""
    refusal: type[Exception] = Unsupported
    pygraph, cudnnGraphNotSupportedError = Graph, Unsupported

    class data_type:
        FLOAT = "float"

    class heur_mode:
        A, FALLBACK = "A", "FALLBACK"

    class numerical_note:
        NONDETERMINISTIC, TENSOR_CORE, DOWN_CONVERT_INPUTS = "nondeterministic", "tensor core", "down convert"

    @staticmethod
    def create_handle() -> int:
        return 1

    @staticmethod
    def set_stream(handle: int, stream: int) -> None:
        pass


def products_of(cupy: Any) -> Any:
    """What makes a layer's products with the stand-in."""
    return partial(CudnnProduct, CudnnProducts(cupy, Cudnn, "float32"))


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-4), ("float64", 1e-12)])
@pytest.mark.parametrize("lacks", ["", "fprop", "wgrad", "dgrad"])
@pytest.mark.parametrize("refusal", [Unsupported, RuntimeError, ValueError])
@pytest.mark.parametrize("window", [Patches(3, 1, 1, (6, 5)), Patches(3, 2, 1, (3, 3)), Patches(2, 1, 0, (5, 4))])
def test_cudnn_and_patches_give_the_same(
    cupy: Any,
    gpu: Gpu,
    monkeypatch: pytest.MonkeyPatch,
    window: Patches,
    refusal: type[Exception],
    lacks: str,
    dtype: str,
    tolerance: float,
) -> None:
    """In float64, too, which the stand-in's graphs do not know and the true ones compute wrongly."""
    true = cupy.__version__ != "0.fake"
    if true and (gpu.cudnn is None or lacks or refusal is not Unsupported):
        pytest.skip("no cuDNN, or nothing that the true one can be told to lack")
    monkeypatch.setattr(Cudnn, "lacks", lacks)
    monkeypatch.setattr(Cudnn, "refusal", refusal)
    cudnn = gpu.cudnn if true else CudnnProducts(cupy, Cudnn, "float32")
    rng = np.random.default_rng(2)
    workspace = gpu.workspace()
    x = gpu.to_device(rng.standard_normal((2, 6, 5, 3)).astype(dtype))
    weights = gpu.to_device(rng.standard_normal((window.kernel, window.kernel, 3, 4)).astype(dtype))
    dz = gpu.to_device(rng.standard_normal((2, *window.image, 4)).astype(dtype))
    results = []
    for product in (
        CudnnProduct(cudnn, "a", window, workspace),
        PatchProduct("b", window, workspace),
    ):
        z, gradient, dx = np.empty_like(dz), np.empty_like(weights), np.empty_like(x)
        product.forward(x, weights, z)
        product.weight_gradient(x, dz, gradient, add=False)
        product.weight_gradient(x, dz, gradient, add=True)
        product.input_gradient(dz, weights, dx)
        results.append([array.get() for array in (z, gradient, dx)])
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def test_a_network_grows_out_of_copied_layers(cupy: Any, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN's handle and plans stay the device's."""
    if cupy.__version__ == "0.fake":
        monkeypatch.setattr(gpu.ops, "convolution", products_of(cupy), raising=False)
    network = grown(build("digits-cnn", (8, 8, 1), 10, width=0.25, workspace=gpu.workspace()), 2)
    theta = gpu.to_device(network.initial(0, np.float32))
    assert network.outputs(theta, gpu.to_device(np.ones((3, 8, 8, 1), np.float32))).shape == (3, 10)


def test_a_rank_without_examples(cupy: Any, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with fewer examples than ranks of a hybrid: nothing is computed, as by patches."""
    if cupy.__version__ == "0.fake":
        monkeypatch.setattr(gpu.ops, "convolution", products_of(cupy), raising=False)
    layer = ConvolutionOptions(4, 3, pool=2).make()
    layer.connect((8, 8, 1), "conv", gpu.workspace())
    views = {p.name: gpu.to_device(np.ones(p.shape, np.float32)) for p in layer.parameters}
    assert layer.forward(views, gpu.to_device(np.zeros((0, 8, 8, 1), np.float32))).shape == (0, 3, 3, 4)
