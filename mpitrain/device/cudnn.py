"""Convolution with cuDNN, through NVIDIA's cudnn-frontend if it is installed.

Images are NHWC as everywhere here. cuDNN needs weights [filters, kh, kw, c], ours are [kh, kw, c, filters]: they are
transposed once per minibatch, and so is their gradient. Nondeterministic kernels are excluded, and for `matmul =
"float32"` also those that round their inputs for the tensor cores. With "bf16", convolutions use TF32, since cuDNN
would need a second copy of every activation. In float64 they are made of patches: cudnn-frontend 1.18 gives cuDNN two
factors of the result in four bytes each, where it reads eight, and the result is arbitrary.
"""

from typing import Any

import numpy as np

from mpitrain.errors import first_line, missing
from mpitrain.flat import Array
from mpitrain.models.patches import PatchProduct
from mpitrain.models.workspace import Patches, Workspace

Arrays = tuple[Array, Array, Array]  #: two operands, result
#: A graph of cuDNN's that is built once for given shapes and run many times; its tensors, in the order of `Arrays`; the
#: bytes that it needs beside them.
Plan = tuple[Any, tuple[Any, ...], int]


class CudnnProducts:
    """cuDNN's handle and a cache of plans."""

    def __init__(self, cupy: Any, cudnn: Any, precision: str) -> None:
        self.cupy, self.cudnn, self.precision = cupy, cudnn, precision
        self.handle = cudnn.create_handle()
        cudnn.set_stream(handle=self.handle, stream=cupy.cuda.get_current_stream().ptr)
        self._plans: dict[tuple[Any, ...], Plan | None] = {}
        self._workspace = cupy.empty(0, np.uint8)

    @classmethod
    def found(cls, cupy: Any, precision: str) -> "tuple[CudnnProducts | None, str]":
        """cuDNN's products, or None and the reason if cudnn-frontend or cuDNN itself is missing."""
        try:
            import cudnn

            return cls(cupy, cudnn, precision), ""
        except Exception as error:  # depends on what is missing: ImportError, a missing library, …
            return None, "nvidia-cudnn-frontend is not installed" if missing(error, "cudnn") else first_line(error)

    def run(self, kind: str, window: Patches, x: tuple[int, ...], filters: int, arrays: Arrays) -> bool:
        """Run conv_fprop, conv_dgrad or conv_wgrad on two operands and the result. `x` is the shape of the images.

        Returns False and does nothing if cuDNN has no kernel for it, or the arrays are not float32.
        """
        if arrays[2].dtype != np.float32:
            return False
        key = kind, window, x, filters
        if key not in self._plans:
            try:
                self._plans[key] = self._plan(kind, window, x, filters)
            except (RuntimeError, ValueError, self.cudnn.cudnnGraphNotSupportedError):
                self._plans[key] = None
        plan = self._plans[key]
        if plan is None:
            return False
        graph, tensors, nbytes = plan
        if nbytes > self._workspace.size:
            self._workspace = self.cupy.empty(nbytes, np.uint8)
        pointers = {tensor: array.data.ptr for tensor, array in zip(tensors, arrays, strict=True)}
        graph.execute(pointers, self._workspace.data.ptr, handle=self.handle)
        return True

    def _plan(self, kind: str, window: Patches, x: tuple[int, ...], filters: int) -> Plan:
        cudnn = self.cudnn
        number = cudnn.data_type.FLOAT
        graph = cudnn.pygraph(
            io_data_type=number, intermediate_data_type=number, compute_data_type=number, handle=self.handle
        )
        n, height, width, channels = x
        (rows, columns), kernel = window.image, window.kernel
        images = [n, channels, height, width], _nhwc(height, width, channels)
        weights = [filters, channels, kernel, kernel], _nhwc(kernel, kernel, channels)
        outputs = [n, filters, rows, columns], _nhwc(rows, columns, filters)
        operands, (dim, stride) = {
            "conv_fprop": ({"image": images, "weight": weights}, outputs),
            "conv_dgrad": ({"loss": outputs, "filter": weights}, images),
            "conv_wgrad": ({"image": images, "loss": outputs}, weights),
        }[kind]
        tensors = {name: graph.tensor(dim=d, stride=s, data_type=number) for name, (d, s) in operands.items()}
        pad, strides = [window.pad] * 2, [window.stride] * 2
        result = getattr(graph, kind)(**tensors, padding=pad, stride=strides, dilation=[1, 1])
        result.set_output(True).set_data_type(number).set_dim(dim).set_stride(stride)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        notes = cudnn.numerical_note
        graph.deselect_numeric_notes([notes.NONDETERMINISTIC])
        if self.precision == "float32":
            graph.deselect_numeric_notes([notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS])
        graph.check_support()
        graph.build_plans()
        return graph, (*tensors.values(), result), graph.get_workspace_size()


class CudnnProduct(PatchProduct):
    """The products with cuDNN, for the whole minibatch at once; with patches if cuDNN has no kernel."""

    def __init__(self, owner: CudnnProducts, name: str, window: Patches, workspace: Workspace) -> None:
        super().__init__(name, window, workspace)
        self._owner = owner

    def examples(self, count: int, channels: int, itemsize: int) -> int:
        return max(1, count)

    def forward(self, x: Array, weights: Array, z: Array) -> None:
        self._turned = self._turn(weights)
        if not self._owner.run("conv_fprop", self._window, x.shape, z.shape[3], (x, self._turned, z)):
            super().forward(x, weights, z)

    def weight_gradient(self, x: Array, dz: Array, out: Array, add: bool) -> None:
        shape = (out.shape[3], *out.shape[:3])
        turned = self._workspace.array(f"{self._name}.turned.gradient", shape, out.dtype)
        if not self._owner.run("conv_wgrad", self._window, x.shape, dz.shape[3], (x, dz, turned)):
            super().weight_gradient(x, dz, out, add)
            return
        back = turned.transpose(1, 2, 3, 0)
        if add:
            np.add(out, back, out=out)
        else:
            np.copyto(out, back)

    def input_gradient(self, dz: Array, weights: Array, dx: Array) -> None:
        if not self._owner.run("conv_dgrad", self._window, dx.shape, dz.shape[3], (dz, self._turned, dx)):
            super().input_gradient(dz, weights, dx)

    def _turn(self, weights: Array) -> Array:
        turned = self._workspace.array(f"{self._name}.turned", (weights.shape[3], *weights.shape[:3]), weights.dtype)
        np.copyto(turned, weights.transpose(3, 0, 1, 2))
        return turned


def _nhwc(height: int, width: int, channels: int) -> list[int]:
    """Strides of the dimensions n, c, h, w."""
    return [height * width * channels, 1, width * channels, channels]
