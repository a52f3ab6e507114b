"""What PyTorch has of CUDA, for the arrays of this stand-in: streams that its operations are in order with.

A PyTorch for the CPU computes at once. Within `torch.cuda.stream(s)` it first does what waits in `s`, as a kernel there
would find it done. What it writes to memory that it shares with arrays waits in `s` like any kernel. Outside it heeds
no stream, as the default stream heeds no others: it reads what is there.
"""

import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

from .arrays import shared
from .cuda import Stream, _streams, runtime

_for_good = ExitStack()
#: What writes to given memory and nothing else, with the argument that it writes to.
WRITING = {"copy_": 0, "zero_": 0, "fill_": 0, "_foreach_copy_": 0, "add.out": "out"}


class ExternalStream:
    """A stream of CuPy's by its handle."""

    def __init__(self, stream_ptr: int, device: Any = None) -> None:
        self.cuda_stream, self.device = stream_ptr, device


def _writing(function: Any, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Any:
    """What this operation writes to, if it is memory that arrays lie in, else None."""
    name = str(function).removeprefix("aten.")
    place = WRITING.get(name, WRITING.get(name.rpartition(".")[0]))
    if place is None:
        return None
    out = settings[place] if isinstance(place, str) else arguments[place]
    tensors = out if isinstance(out, (list, tuple)) else [out]
    return out if all(shared(tensor.data_ptr()) for tensor in tensors) else None


def _modes() -> type:
    from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

    class InOrder(TorchDispatchMode):
        """PyTorch's operations in a stream."""

        def __init__(self, stream: ExternalStream) -> None:
            super().__init__()
            self._queue: Stream = _streams[stream.cuda_stream]

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            settings = kwargs or {}
            written = _writing(func, args, settings)
            if written is None:
                self._queue.flush()
                return func(*args, **settings)

            def write() -> None:
                with _disable_current_modes():  # wherever the queue is emptied
                    func(*args, **settings)

            self._queue.submit(write)
            return None if isinstance(written, (list, tuple)) else written

    return InOrder


def _available() -> bool:
    """To all but PyTorch's own modules, which would ask more of it, when they export a network for example."""
    return not str(sys._getframe(1).f_globals.get("__name__")).startswith("torch.")


@contextmanager
def standing_in(torch: ModuleType) -> Iterator[None]:
    """Let this PyTorch have CUDA, of which `torch.cuda` has no more than is needed."""
    generators = (torch.default_generator,) * runtime.getDeviceCount()
    found = {"is_available": _available, "ExternalStream": ExternalStream, "stream": _modes()}
    with (
        patch.multiple(torch.cuda, default_generators=generators, **found),
        patch.object(torch.version, "cuda", "13.0"),
    ):
        yield


class _WhenLoaded(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in as soon as PyTorch is loaded, for good."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """PyTorch's, with this for a loader."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> Any:
        """PyTorch's."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """PyTorch's, and what is here."""
        module.__spec__.loader = module.__loader__ = self._loader  # type: ignore[union-attr]
        self._loader.exec_module(module)
        _for_good.enter_context(standing_in(module))


def stand_in_for_good() -> None:
    """From now on, or from when PyTorch is loaded."""
    if "torch" in sys.modules:
        _for_good.enter_context(standing_in(sys.modules["torch"]))
    else:
        sys.meta_path.insert(0, _WhenLoaded())
