"""Modules of PyTorch's on the device: in order with kernels and copies, and trained as on the CPU."""

import threading
from typing import Any

import numpy as np
import pytest

from mpitrain.algorithms import ALGORITHMS
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.device.gpu import Gpu
from mpitrain.flat import Array, on_host
from mpitrain.models.model import Consumer
from mpitrain.monitoring.evaluation import Evaluation, Measuring
from mpitrain.mpi import Transport
from mpitrain.sampling.batch import Batch

from .test_training import Noise, require_same, trained

torch = pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")

from torch import nn  # noqa: E402

from mpitrain.models.torch.module import TorchModel  # noqa: E402


class Net(nn.Module):
    """With normalisation, and a matrix large enough for a hook of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.middle, self.last = nn.Linear(512, 80), nn.Linear(80, 10)

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        x = torch.relu(self.norm(self.first(x))).flatten(1)
        return self.last(torch.relu(self.middle(x)))


def model_on(device: Cpu, l2: float = 0.0) -> TorchModel:
    return TorchModel(lambda seed: Net(), (8, 8, 1), 10, l2=l2, place=device.place())


def batch_on(device: Cpu) -> Batch:
    rng = np.random.default_rng(1)
    inputs = rng.standard_normal((16, 8, 8, 1)).astype(np.float32)
    return Batch(device.to_device(inputs), device.to_device(rng.integers(10, size=16).astype(np.int32)))


def keep_busy(gpu: Gpu) -> None:
    """Let a true GPU be milliseconds behind the host."""
    side = 64 if gpu.cupy.__version__ == "0.fake" else 8192
    large = gpu.to_device(np.ones((side, side), np.float32))
    for _ in range(50):
        np.multiply(large, np.float32(1), out=large)


def between_kernels(gpu: Gpu, model: TorchModel, how: str, settled: bool = False) -> np.ndarray:
    """The gradient at weights that a kernel has just doubled and another one is about to spoil: of parts that are
    copied to the host as they get final, or that kernels add to a vector. Nobody waits between the kernels, unless the
    first ones are `settled`."""
    theta = gpu.to_device(model.initial(1))
    gradient, found = np.empty_like(theta), np.zeros_like(theta)
    host, batch = np.full(theta.shape, np.nan, np.float32), batch_on(gpu)
    leaving = gpu.outgoing(gradient, host)

    def copy(part: slice) -> None:
        leaving.start(part)
        leaving.finish()

    def add(part: slice, values: Array) -> None:
        np.add(found[part], values, out=found[part])

    keep_busy(gpu)
    np.multiply(theta, np.float32(2), out=theta)
    if settled:
        gpu.compute.synchronize()
    model.loss_and_gradient(theta, gradient, batch, None, copy if how == "copies" else Consumer(gradient, add))
    np.multiply(theta, np.float32(np.nan), out=theta)
    return host if how == "copies" else np.array(on_host(found))


def expected(l2: float = 0.0) -> np.ndarray:
    """The same by the CPU."""
    model = model_on(CPU, l2)
    theta = 2 * model.initial(1)
    gradient = np.empty_like(theta)
    model.loss_and_gradient(theta, gradient, batch_on(CPU))
    return gradient


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """Relative; infinite where something is not finite."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted)) if np.isfinite(found).all() else np.inf


@pytest.mark.parametrize("l2", [0.0, 0.1])
@pytest.mark.parametrize("how", ["copies", "kernels"])
def test_kernels_and_copies_before_and_after_are_in_order(torch_gpu: Gpu, how: str, l2: float) -> None:
    assert difference(between_kernels(torch_gpu, model_on(torch_gpu, l2), how), expected(l2)) < 1e-5


class Elsewhere:
    """A place whose PyTorch computes in a stream of its own, as it does by itself."""

    def __init__(self, place: Any, gpu: Gpu) -> None:
        self._place, self._own = place, gpu.cupy.cuda.Stream(non_blocking=True)
        self._stream = torch.cuda.ExternalStream(self._own.ptr, device=gpu.number)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place, name)

    def computing(self) -> Any:
        return torch.cuda.stream(self._stream)


@pytest.mark.parametrize(("how", "settled"), [("copies", False), ("kernels", False), ("copies", True)])
def test_without_that_order_they_read_what_is_not_there_yet(torch_gpu: Gpu, how: str, settled: bool) -> None:
    """The weights before the kernel, or the vector before the gradient is in it."""
    if torch_gpu.cupy.__version__ != "0.fake":
        pytest.skip("a true GPU may be quick enough")
    model = model_on(torch_gpu)
    model.place = Elsewhere(model.place, torch_gpu)  # type: ignore[assignment]
    assert difference(between_kernels(torch_gpu, model, how, settled), expected()) > 0.1


def test_the_module_computes_with_the_vectors_themselves(torch_gpu: Gpu) -> None:
    model = model_on(torch_gpu)
    theta, handed = torch_gpu.to_device(model.initial(1)), []
    gradient = np.empty_like(theta)
    model.loss_and_gradient(
        theta, gradient, batch_on(torch_gpu), None, Consumer(gradient, lambda part, g: handed.append((part, g)))
    )
    places = {part.start: theta[part].data.ptr for part in model.layout.slices.values()}
    assert [p.data_ptr() for p in model.module.parameters()] == list(places.values())
    large = model.layout.slices["middle.weight"]
    elsewhere = [part for part, g in handed if g.data.ptr != gradient[part].data.ptr]
    assert elsewhere == [large] and all(type(g) is type(theta) for _, g in handed)


def test_a_hook_is_in_order_in_any_thread(torch_gpu: Gpu) -> None:
    """As autograd has threads of its own for GPUs, in which nothing is current."""
    found: list[int] = []
    hook = torch_gpu.place().hook(lambda: found.append(torch_gpu.cupy.cuda.get_current_stream().ptr))
    thread = threading.Thread(target=hook, args=(torch.zeros(1),))
    thread.start()
    thread.join(60)
    assert found == [torch_gpu.compute.ptr]


def test_backward_stays_in_the_thread_that_calls_mpi(torch_gpu: Gpu) -> None:
    found: set[tuple[int, bool]] = set()
    model = model_on(torch_gpu)
    theta = torch_gpu.to_device(model.initial(1))

    def ready(part: slice) -> None:
        found.add((threading.get_ident(), torch._C._is_multithreading_enabled()))

    model.loss_and_gradient(theta, np.empty_like(theta), batch_on(torch_gpu), None, ready)
    assert found == {(threading.get_ident(), False)} and torch._C._is_multithreading_enabled()


@pytest.mark.parametrize(("matmul", "allowed"), [("float32", False), ("tf32", True), ("bf16", True)])
def test_tf32_only_if_it_is_wanted(torch_gpu: Gpu, matmul: str, allowed: bool) -> None:
    settings = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [each.allow_tf32 for each in settings]
    try:
        for each in settings:
            each.allow_tf32 = not allowed
        torch_gpu.matmul = matmul
        torch_gpu.place()
        assert [each.allow_tf32 for each in settings] == [allowed, allowed]
    finally:
        for each, was in zip(settings, before, strict=True):
            each.allow_tf32 = was


def test_evaluation_with_statistics_that_are_measured_there(torch_gpu: Gpu) -> None:
    """What is kept with the weights is in host memory, and says the same to a model on the CPU."""
    found, kept = [], []
    for device in (torch_gpu, CPU):
        model, dtype = model_on(device), np.dtype(np.float32)
        measuring = Measuring(model, Noise(), 1, dtype, device)
        evaluation = Evaluation(model, {"test": Noise()}, dtype, lambda: 0.0, device=device, measuring=measuring)
        found.append(evaluation.run(device.to_device(model.initial(1))))
        kept.append(model.kept(model.initial(1)))
    assert found[0] == pytest.approx(found[1], rel=1e-4)
    assert kept[0].keys() == kept[1].keys() and "norm.running_var" in kept[0]
    for name, array in kept[0].items():
        np.testing.assert_allclose(array, kept[1][name], rtol=1e-4)
    model, theta = model_on(torch_gpu), model_on(CPU).initial(1)
    model.restore(kept[1], theta)
    placed = torch_gpu.to_device(theta)
    assert model.measured(placed)
    assert on_host(model.outputs(placed, batch_on(torch_gpu).inputs)) == pytest.approx(
        model.standalone(placed)(torch.from_numpy(batch_on(CPU).inputs).permute(0, 3, 1, 2)).detach().numpy(), rel=1e-3
    )


MODULES = [name for name in ALGORITHMS if name != "hybrid"]


@pytest.mark.parametrize("name", MODULES)
def test_one_rank(session_of: Any, torch_gpu: Gpu, name: str) -> None:
    from mpi4py import MPI

    alone = Transport(MPI.COMM_SELF, deadline=60.0)
    found, wanted = (
        trained(session_of, alone, name, device, network=model_on(device, 1e-3)) for device in (torch_gpu, CPU)
    )
    require_same(found, wanted)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", ["asgd", "easgd", "sparse-delta", "allreduce", "block-momentum"])
def test_several_ranks(session_of: Any, transport: Transport, torch_gpu: Gpu, name: str, direct: bool) -> None:
    torch_gpu.direct = direct
    found, wanted = (
        trained(session_of, transport, name, device, network=model_on(device, 1e-3)) for device in (torch_gpu, CPU)
    )
    require_same(found, wanted)
