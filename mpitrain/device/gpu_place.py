"""A GPU on which a module of PyTorch's computes, on CuPy's arrays and in CuPy's order.

Tensors and arrays share memory by DLPack. PyTorch's kernels go to the stream to which all others go, in program order,
so that a copy in another stream waits for both kinds by the same events. Memory that PyTorch frees is given by its
allocator only to later kernels of that stream; the same holds for CuPy.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import SupportsFloat

import torch

from mpitrain.device.gpu_memory import GpuMemory
from mpitrain.flat import Array
from mpitrain.models.torch.place import CpuPlace, Hook


class GpuPlace(CpuPlace):
    """The rank's GPU. Products outside a `bf16` context are in TF32 unless `matmul` is "float32"."""

    def __init__(self, device: GpuMemory, matmul: str) -> None:
        self._gpu, self._cupy = device, device.cupy
        # PyTorch numbers the GPUs as CuPy does: CUDA tells both which ones there are.
        self._stream = torch.cuda.ExternalStream(device.compute.ptr, device=device.number)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = matmul != "float32"
        with self.computing():
            self.device = self.tensor(self._cupy.empty(1, "f")).device

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Set the current device and stream of both CuPy and PyTorch, as each keeps its own for every thread."""
        here = self._cupy.cuda.Device(self._gpu.number)
        # Without multithreading, backward stays in the calling thread, in which MPI may be called.
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
        """`report` runs on the compute stream, whatever thread autograd calls it in, and whatever stream is current."""

        def ready(parameter: torch.Tensor) -> None:
            with self.computing():
                report()

        return ready

    def seed(self, keys: Sequence[int]) -> None:
        """Seed the GPU's generator and those of the CPU, by which a module may decide which of its layers to skip."""
        super().seed(keys)
        torch.cuda.default_generators[self._gpu.number].manual_seed(keys[0])
