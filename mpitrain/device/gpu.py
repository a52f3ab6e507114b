"""A GPU through CuPy. Ranks may share one: each has its own context and allocates only the memory it needs."""

from functools import partial
from typing import Any

import numpy as np

from mpitrain.algorithms.optimizers import Rule
from mpitrain.compression.residual import NO_LEVELS
from mpitrain.device.collectives import DirectCarrier, StagedCarrier
from mpitrain.device.cpu import CPU, Cpu, Ranks
from mpitrain.device.cudnn import CudnnProduct, CudnnProducts
from mpitrain.device.gpu_memory import GpuMemory
from mpitrain.device.operations import Operations
from mpitrain.device.prefetch import open_loader
from mpitrain.device.staging import GpuStaging, Outgoing, Uploading
from mpitrain.flat import Array
from mpitrain.models.workspace import Workspace
from mpitrain.start import DEADLINE


class Gpu(GpuMemory, Cpu):
    """GPU `number` of this node. `matmul` is the precision of float32 products: "float32", "tf32" or "bf16"."""

    name = "gpu"
    emits_parts = False  # each call waits for the device

    def __init__(self, cupy: Any, number: int, matmul: str = "float32") -> None:
        super().__init__(cupy, number)
        self.matmul = matmul
        self.ops = Operations(cupy, matmul)
        self.cudnn, without = CudnnProducts.found(cupy, matmul)
        if self.cudnn:
            self.ops.convolution = partial(CudnnProduct, self.cudnn)
        self._convolutions = "cuDNN" if self.cudnn else f"im2col ({without})"
        self._checksum = cupy.empty(1, np.uint64)

    def __str__(self) -> str:
        name = self.cupy.cuda.runtime.getDeviceProperties(self.number)["name"]
        text = name.decode() if isinstance(name, bytes) else str(name)
        return f"GPU {self.number} ({text}), {self.matmul} products, convolutions by {self._convolutions}"

    @property
    def host(self) -> Cpu:
        return CPU

    def workspace(self) -> Workspace:
        return GpuWorkspace(self.cupy, self.ops)

    def place(self) -> Any:
        from mpitrain.device.gpu_place import GpuPlace

        self._convolutions = "PyTorch"
        return GpuPlace(self, self.matmul)

    def open_loader(self, corpus: Any, dtype: np.dtype, deadline: float = DEADLINE) -> Uploading:
        return Uploading(self, open_loader(corpus, dtype, deadline=deadline, empty=self.pinned))

    def transport(self, transport: Ranks) -> Ranks:
        carrier = DirectCarrier if self.direct and transport.size > 1 else StagedCarrier
        return transport.carried(carrier(transport, self))

    def checksum(self, vector: Array) -> int:
        if isinstance(vector, np.ndarray):
            return super().checksum(vector)
        self.ops.checksum(vector, self._checksum)
        return int(self._checksum.get()[0])  # waits for the preceding kernels

    def emit(self, residual: Array, *arrays: Array, **how: Any) -> int:
        return self.ops.emit(residual, *arrays, **how)

    def apply_words(self, words: Array, step: int, counts: Array, weights: Array, levels: Array = NO_LEVELS) -> None:
        self.ops.apply_words(words, step, counts, weights, levels)

    def fast(self, rule: Rule) -> Rule:
        return self.ops.fused.get(rule, rule)

    def compile_rules(self, dtype: np.dtype) -> None:
        """Do nothing: kernels are compiled when they are loaded."""

    def outgoing(self, vector: Array, to: Array) -> Any:
        return Outgoing(self, vector, to) if isinstance(to, np.ndarray) else super().outgoing(vector, to)

    def staging(self, vector: Array) -> Any:
        return GpuStaging(self, vector) if isinstance(vector, np.ndarray) else super().staging(vector)


class GpuWorkspace(Workspace):
    """Buffers on the GPU. Patches need not fit in a cache, but in memory together with everything else."""

    patch_rows, patch_bytes = 1 << 62, 1 << 30
    fuses_bias = True
