"""Buffers that layers write to, kept between minibatches."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from mpitrain import ops
from mpitrain.flat import Array
from mpitrain.models.patch_product import Patches, PatchProduct, Product


class Workspace:
    """Named buffers that never shrink, and the array functions of their device.

    `xp` makes arrays (numpy, or a module like it), `ops` has the functions of mpitrain.ops. Patch matrices of
    convolutions have at least `patch_rows` rows, so that matrix products run at full speed, within `patch_bytes`.
    """

    patch_rows, patch_bytes = 1024, 8 << 20  # these fit in a CPU's cache

    def __init__(self, xp: Any = np, ops: ModuleType | Any = ops) -> None:
        self.xp = xp
        self.ops = ops
        #: Called between the blocks of a long layer, so that messages progress.
        self.progress: Callable[[], None] = lambda: None
        #: A bias that the previous layer has left to the activation that follows.
        self.bias: Array | None = None
        self._views: dict[tuple[str, Any], Array] = {}
        self._buffers: dict[tuple[str, Any], Array] = {}

    def another(self) -> "Workspace":
        """A workspace on the same device with its own buffers."""
        return type(self)(self.xp, self.ops)

    def product(self, name: str, window: Patches) -> Product:
        """The products of the convolution `name`."""
        return PatchProduct(name, window, self)

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """An uninitialised array of `shape`; allocates only if the buffer `name` was never that large."""
        key = name, dtype
        view = self._views.get(key)
        if view is None or view.shape != shape:
            size = int(np.prod(shape))
            buffer = self._buffers.get(key)
            if buffer is None or buffer.size < size:
                buffer = self._buffers[key] = self.xp.empty(size, dtype)
            view = self._views[key] = buffer[:size].reshape(shape)
        return view
