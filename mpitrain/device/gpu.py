"""A GPU through CuPy, with three streams: for computing, for incoming copies and for outgoing copies.

All kernels go to the compute stream, in program order. By events, a copy waits for the kernels before it, and later
kernels wait for the copy; the host waits only when it reads data, such as a loss or a vector to send. Several ranks may
share a GPU: each has its own context and allocates only the memory that it needs.
"""

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mpitrain.data.prefetch import DEADLINE, open_loader
from mpitrain.device.batches import Uploading
from mpitrain.device.collectives import StagedTransport
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.device.cudnn import CudnnProducts
from mpitrain.device.direct import DirectTransport
from mpitrain.device.operations import Operations
from mpitrain.device.staging import GpuStaging, Outgoing
from mpitrain.device.streams import Event, Stream
from mpitrain.flat import Array
from mpitrain.models.patch_product import Patches, Product
from mpitrain.models.workspace import Workspace
from mpitrain.rules import Rule

if TYPE_CHECKING:
    from mpitrain.models.torch_place import Place
    from mpitrain.mpi import Transport

CHUNK = 1 << 20  # elements staged at a time: 4 MiB, while 1 MiB suffices for the full speed of the bus


class Gpu(Cpu):
    """GPU `number` of this node. `matmul` is the precision of float32 products: "float32", "tf32" or "bf16"."""

    name = "gpu"
    emits_parts = False  # each call waits for the device

    def __init__(self, cupy: Any, number: int, matmul: str = "float32") -> None:
        self.cupy, self.number, self.matmul = cupy, number, matmul
        cupy.cuda.Device(number).use()
        self.compute, self.incoming, self._leaving = (cupy.cuda.Stream(non_blocking=True) for _ in range(3))
        self.compute.__enter__()  # not `use`, whose effect ends with any `with` block, even in CuPy's own functions
        self.ops = Operations(cupy, matmul)
        self.emit, self.apply_words = self.ops.emit, self.ops.apply_words
        self.cudnn, without = CudnnProducts.found(cupy, matmul)
        self._convolutions = "cuDNN" if self.cudnn else f"im2col ({without})"
        self._chunks: dict[np.dtype, list[tuple[Array, Event]]] = {}
        self._checksum = cupy.empty(1, np.uint64)

    def __str__(self) -> str:
        name = self.cupy.cuda.runtime.getDeviceProperties(self.number)["name"]
        text = name.decode() if isinstance(name, bytes) else str(name)
        return f"GPU {self.number} ({text}), {self.matmul} products, convolutions by {self._convolutions}"

    @property
    def host(self) -> Cpu:
        return CPU

    def workspace(self) -> Workspace:
        return GpuWorkspace(self)

    def place(self) -> "Place":
        from mpitrain.device.gpu_place import GpuPlace

        self._convolutions = "PyTorch"
        return GpuPlace(self)

    def open_loader(self, corpus: Any, dtype: np.dtype, deadline: float = DEADLINE) -> "Uploading":
        return Uploading(self, open_loader(corpus, dtype, deadline=deadline, empty=self.pinned))

    def transport(self, transport: "Transport") -> "Transport":
        wrapped = (DirectTransport if self.direct and transport.size > 1 else StagedTransport)(transport, self)
        return cast("Transport", wrapped)  # it passes on what it does not have

    def to_device(self, vector: Array) -> Array:
        if not isinstance(vector, np.ndarray):
            return vector
        placed = self.cupy.empty(vector.shape, vector.dtype)
        self.upload(placed.reshape(-1), np.ascontiguousarray(vector).reshape(-1))
        return placed

    def upload(self, to: Array, vector: Array, steady: bool = False) -> None:
        """Copy through two pinned buffers: one is filled while the other is copied. Later kernels see the whole
        vector."""
        self.after(self.compute, self.incoming)
        if steady:
            to.set(vector, stream=self.incoming)
            self.after(self.incoming, self.compute)
            return
        for number, start in enumerate(range(0, vector.size, CHUNK)):
            piece = slice(start, min(start + CHUNK, vector.size))
            pinned, copied = self._chunk(vector.dtype, number, piece)
            copied.synchronize()
            np.copyto(pinned, vector[piece])
            to[piece].set(pinned, stream=self.incoming)
            copied.record(self.incoming)
        self.after(self.incoming, self.compute)

    def download(self, vector: Array, to: Array) -> None:
        self.after(self.compute, self._leaving)
        coming: list[tuple[slice, Array, Event]] = []
        for number, start in enumerate(range(0, to.size, CHUNK)):
            piece = slice(start, min(start + CHUNK, to.size))
            if len(coming) == 2:
                self._arrive(*coming.pop(0), to)
            pinned, copied = self._chunk(to.dtype, number, piece)
            copied.synchronize()
            vector[piece].get(stream=self._leaving, out=pinned, blocking=False)
            copied.record(self._leaving)
            coming.append((piece, pinned, copied))
        for each in coming:
            self._arrive(*each, to)

    def host_like(self, vector: Array) -> Array:
        return self.pinned(vector.shape, vector.dtype)

    def checksum(self, vector: Array) -> int:
        if isinstance(vector, np.ndarray):
            return super().checksum(vector)
        self.ops.checksum(vector, self._checksum)
        return int(self._checksum.get()[0])  # waits for the preceding kernels

    def fast(self, rule: Rule) -> Rule:
        return self.ops.fused.get(rule, rule)

    def compile_rules(self, dtype: np.dtype) -> None:
        """They are compiled when they are loaded."""

    def outgoing(self, vector: Array, to: Array) -> Outgoing:  # type: ignore[override]  # InPlace's methods
        return Outgoing(self, self._leaving, vector, to)

    def staging(self, vector: Array) -> Any:
        if not isinstance(vector, np.ndarray):
            return super().staging(vector)
        return GpuStaging(self, self._leaving, vector)

    # ---- for the other modules of this package

    def pinned(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        """An uninitialised pinned array, for asynchronous copies."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        with self.cupy.cuda.Device(self.number):  # another thread may call this
            memory = self.cupy.cuda.alloc_pinned_memory(max(size, 1))
        return np.frombuffer(memory, np.uint8, size).view(dtype).reshape(shape)

    def event(self) -> Event:
        """An event to record in a stream."""
        return self.cupy.cuda.Event(disable_timing=True)

    def after(self, first: Stream, then: Stream) -> None:
        """Let later work in stream `then` wait for the work that is in stream `first` now."""
        mark = self.event()
        mark.record(first)
        then.wait_event(mark)

    @property
    def leaving(self) -> Stream:
        """The stream of copies to the host."""
        return self._leaving

    def _chunk(self, dtype: np.dtype, number: int, piece: slice) -> tuple[Array, Event]:
        """One of two alternating pinned buffers, with the event of its last copy."""
        if dtype not in self._chunks:
            self._chunks[dtype] = [(self.pinned(CHUNK, dtype), self.event()) for _ in range(2)]
        buffer, copied = self._chunks[dtype][number % 2]
        return buffer[: piece.stop - piece.start], copied

    @staticmethod
    def _arrive(piece: slice, pinned: Array, copied: Event, to: Array) -> None:
        copied.synchronize()
        np.copyto(to[piece], pinned)


class GpuWorkspace(Workspace):
    """Buffers on the GPU. Patches need not fit in a cache, but in memory together with everything else."""

    patch_rows, patch_bytes = 1 << 62, 1 << 30

    def __init__(self, device: Gpu) -> None:
        super().__init__(device.cupy, device.ops)
        self._device = device

    def another(self) -> Workspace:
        return GpuWorkspace(self._device)

    def product(self, name: str, window: Patches) -> Product:
        cudnn = self._device.cudnn
        return cudnn.product(name, window, self) if cudnn else super().product(name, window)
