"""Arrays that behave as CuPy's do, over host memory.

They have the CUDA array interface and refuse what CuPy refuses: becoming a NumPy array unasked, and meeting one in an
operation. New arrays are full of garbage.
"""

from typing import Any

import numpy as np

from .cuda import Stream, current, launched

#: Methods that only look at the memory in another way.
VIEWS = ("reshape", "ravel", "transpose", "swapaxes", "view")
#: Functions of arrays that launch nothing.
MAKING = ("empty_like", "shape", "size", "ndim")


_exported: dict[int, int] = {}  # where memory that others share begins and ends


def shared(address: int) -> bool:
    """Whether an array of this address was shared by DLPack."""
    return any(begin <= address < end for begin, end in _exported.items())


class MemoryPointer:
    """Where an array begins."""

    def __init__(self, host: np.ndarray) -> None:
        self._host = host
        self.ptr = host.ctypes.data
        self.device_id = 0

    def memset_async(self, value: int, size: int, stream: Stream | None = None) -> None:
        """Fill `size` bytes."""
        (stream or current()).flush()
        self._host.reshape(-1).view(np.uint8)[:size] = value


class ndarray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array on the "device"; `host` is the memory it lies in."""

    __array_priority__ = 100

    def __init__(self, shape: Any = None, dtype: Any = float, *, host: np.ndarray | None = None) -> None:
        if host is None:
            host = np.empty(shape, dtype)
            host.reshape(-1).view(np.uint8)[:] = 0xCD
        self._host = host

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`.")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **settings: Any) -> Any:
        out = settings.get("out")
        if out is not None and any(_overlapping(each, out[0]) for each in inputs):
            launched.append("copy of an operand")
        launched.append(ufunc.__name__)
        if out is not None and method == "__call__":
            given, more = unwrapped(inputs), unwrapped(settings)
            current().submit(lambda: ufunc(*given, **more))
            return out[0] if len(out) == 1 else out
        return outside(getattr(ufunc, method)(*inside(inputs), **inside(settings)))

    def __array_function__(self, function: Any, types: Any, inputs: Any, settings: Any) -> Any:
        if function.__name__ not in MAKING:
            launched.append(function.__name__)
        if function is np.copyto:
            to, *rest = unwrapped(inputs)
            current().submit(lambda: np.copyto(to, *rest, **settings))
            return None
        result = function(*inside(inputs), **inside(settings))
        return settings["out"] if settings.get("out") is not None else outside(result)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        strides = None if self._host.flags.c_contiguous else self._host.strides
        data = self._host.ctypes.data, False
        return {"shape": self.shape, "typestr": self.dtype.str, "data": data, "strides": strides, "version": 3}

    def __dlpack_device__(self) -> Any:
        return self._host.__dlpack_device__()

    def __dlpack__(self, **settings: Any) -> Any:
        """Of host memory, for which DLPack orders nothing: a reader finds what is there."""
        _exported[self._host.ctypes.data] = self._host.ctypes.data + self._host.nbytes
        return self._host.__dlpack__(**settings)

    @property
    def data(self) -> MemoryPointer:
        return MemoryPointer(self._host)

    @property
    def T(self) -> "ndarray":
        return ndarray(host=self._host.T)

    @property
    def device(self) -> Any:
        from .cuda import Device

        return Device()

    def __getattr__(self, name: str) -> Any:
        """Shape, dtype, methods: NumPy's, on what is inside."""
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._host, name)
        if not callable(value) or isinstance(value, np.dtype):
            return value

        def method(*inputs: Any, **settings: Any) -> Any:
            taken = unwrapped if name in VIEWS else inside
            if name not in VIEWS:
                launched.append(name)
            result = value(*taken(inputs), **taken(settings))
            return settings["out"] if settings.get("out") is not None else outside(result)

        return method

    def item(self, *place: int) -> Any:
        """An element, on the host: waits for the stream."""
        current().flush()
        launched.append("wait")
        return self._host.item(*place)

    def tolist(self) -> Any:
        """All elements, on the host."""
        current().flush()
        return self._host.tolist()

    def get(self, stream: Stream | None = None, order: str = "C", out: Any = None, blocking: bool = True) -> np.ndarray:
        """A copy on the host; unless `blocking`, one that is there only when the stream has been waited for."""
        stream = stream or current()
        if out is None:
            out = np.empty(self.shape, self.dtype)
        if out.shape != self.shape or out.dtype != self.dtype:
            raise ValueError(f"out is {out.dtype} {out.shape}, the array {self.dtype} {self.shape}")
        if not (self._host.flags.c_contiguous and out.flags.c_contiguous):
            with stream:  # as CuPy makes a contiguous copy first
                pass
        stream.submit(lambda: np.copyto(out, self._host))
        if blocking:
            launched.append("wait")
            stream.synchronize()
        return out

    def set(self, host: np.ndarray, stream: Stream | None = None) -> None:
        """Copy from the host; on a stream of its own, when that has been waited for."""
        if not isinstance(host, np.ndarray) or host.shape != self.shape or host.dtype != self.dtype:
            raise ValueError(f"cannot set {self.dtype} {self.shape} to {getattr(host, 'shape', host)}")
        (stream or current()).submit(lambda: np.copyto(self._host, host))

    def __getitem__(self, key: Any) -> "ndarray":
        place = unwrapped(key)
        if any(isinstance(each, (list, np.ndarray)) for each in (place if isinstance(place, tuple) else (place,))):
            current().flush()  # copies; slices do not
        return ndarray(host=np.asarray(self._host[place]))

    def __setitem__(self, key: Any, value: Any) -> None:
        launched.append("setitem")
        self._host[inside(key)] = inside(value)

    def __len__(self) -> int:
        return len(self._host)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return self._host.__index__()

    def __bool__(self) -> bool:
        current().flush()
        return bool(self._host)

    def __repr__(self) -> str:
        return f"fake {self._host!r}"

    __hash__ = None  # type: ignore[assignment]


def _overlapping(operand: Any, out: Any) -> bool:
    """Whether CuPy copies the operand first: another array object in the memory of the result."""
    return isinstance(operand, ndarray) and operand is not out and np.may_share_memory(operand._host, unwrapped(out))


def inside(value: Any) -> Any:
    """NumPy arrays for the fakes in arguments of what runs in the current stream."""
    current().flush()
    return unwrapped(value)


def unwrapped(value: Any) -> Any:
    """The same, waiting for nothing. TypeError for a NumPy array, as CuPy mixes no memories."""
    if isinstance(value, ndarray):
        return value._host
    if isinstance(value, np.ndarray) and value.ndim:
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    if isinstance(value, (tuple, list)):
        return type(value)(unwrapped(each) for each in value)
    if isinstance(value, dict):
        return {key: unwrapped(each) for key, each in value.items()}
    return value


def outside(value: Any) -> Any:
    """A fake for a NumPy array or scalar: CuPy's reductions give arrays without dimensions."""
    if isinstance(value, (np.ndarray, np.generic)):
        return ndarray(host=np.asarray(value))
    if isinstance(value, tuple):
        return tuple(outside(each) for each in value)
    return value
