"""A GPU on which a module of PyTorch's computes, on CuPy's arrays and in CuPy's order.

Tensors and arrays share memory by DLPack. PyTorch's kernels go to the stream to which all others go, in program order,
so that a copy in another stream waits for both kinds by the same events. What PyTorch frees, its allocator
gives only to later kernels of that stream; what CuPy frees likewise.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import SupportsFloat

import torch

from mpitrain.device.gpu_memory import GpuMemory
from mpitrain.flat import Array
from mpitrain.models.torch.place import CpuPlace, Hook


class GpuPlace(CpuPlace):
    """The rank's GPU. Other products than those under `bf16` are in TF32 unless `matmul` is "float32"."""

    def __init__(self, device: GpuMemory, matmul: str) -> None:
        self._gpu, self._cupy = device, device.cupy
        # PyTorch numbers the GPUs as CuPy does: CUDA tells both which ones there are.
        self._stream = torch.cuda.ExternalStream(device.compute.ptr, device=device.number)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = matmul != "float32"
        with self.computing():
            self.device = self.tensor(self._cupy.empty(1, "f")).device

    @contextmanager
    def computing(self) -> Iterator[None]:
        """In CuPy's and PyTorch's terms, because each keeps its own current stream and device for every thread."""
        here = self._cupy.cuda.Device(self._gpu.number)
        # Backward stays in the calling thread, in which MPI may be called, and every rule finds what it expects.
        with here, self._gpu.compute, torch.cuda.stream(self._stream), torch.autograd.set_multithreading_enabled(False):
            yield

    def put(self, array: Array) -> Array:
        return self._gpu.to_device(array)

    def tensor(self, array: Array) -> torch.Tensor:
        return torch.from_dlpack(array)

    def array(self, tensor: torch.Tensor) -> Array:
        return self._cupy.from_dlpack(tensor)

    def copied(self, tensor: torch.Tensor) -> Array:
        with self.computing():
            return self.array(tensor.detach().resolve_conj().resolve_neg()).get()

    def number(self, tensor: torch.Tensor) -> SupportsFloat:
        value: SupportsFloat = self.array(tensor.detach().double())  # of any type, such as bfloat16, which CuPy lacks
        return value

    def hook(self, report: Hook) -> Callable[[torch.Tensor], None]:
        """Whatever thread autograd calls it in, and whatever stream is current there."""

        def ready(parameter: torch.Tensor) -> None:
            with self.computing():
                report()

        return ready

    def seed(self, keys: Sequence[int]) -> None:
        """On the CPU, too, where a module may decide which of its layers to skip, for example."""
        super().seed(keys)
        torch.cuda.default_generators[self._gpu.number].manual_seed(keys[0])
