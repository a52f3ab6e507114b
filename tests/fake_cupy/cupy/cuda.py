"""Streams, events and copies over host memory.

A copy or a kernel given to a stream other than the null stream waits in it, until the stream, or an event recorded
after it, is waited for, or something runs on that stream that cannot wait: a matrix product, or what makes a new array.
A program that synchronises too little reads old data.
"""

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

from . import cublas as cublas


class Stream:
    """A queue of copies and kernels that have been asked for and not yet made."""

    null: "Stream"

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self._null = null
        self._queue: list[Callable[[], Any]] = []
        _streams[self.ptr] = self

    @property
    def ptr(self) -> int:
        """A handle; 0 of the null stream."""
        return 0 if self._null else id(self)

    def submit(self, work: Callable[[], Any]) -> None:
        """Do `work` now on the null stream, else when it is waited for."""
        self._queue.append(work)
        if self._null:
            self.flush()

    def flush(self, upto: Callable[[], Any] | None = None) -> None:
        """Do what waits, up to and with `upto`."""
        while self._queue and (upto is None or upto in self._queue):
            self._queue.pop(0)()

    def synchronize(self) -> None:
        """Wait for all of it."""
        self.flush()

    def wait_event(self, event: "Event") -> None:
        """What comes after waits for the event."""
        event.synchronize()

    def record(self, event: "Event | None" = None) -> "Event":
        """An event at this place of the queue."""
        event = event or Event()
        event.record(self)
        return event

    @property
    def done(self) -> bool:
        """Nothing waits."""
        return not self._queue

    def use(self) -> "Stream":
        """Make it the current stream of this thread, until a `with` ends."""
        _here.stream = self
        return self

    def __enter__(self) -> "Stream":
        _here.entered.append(self)
        return self.use()

    def __exit__(self, *_: object) -> None:
        """Go back to the stream of the `with` around this one, else the null stream: CuPy forgets what `use` chose."""
        _here.entered.pop()
        _here.entered[-1].use()


class Event:
    """A place in a stream."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self._stream: Stream | None = None
        self._last: Callable[[], Any] | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Remember how far the stream's queue goes now."""
        self._stream = stream or current()
        self._last = self._stream._queue[-1] if self._stream._queue else None

    def synchronize(self) -> None:
        """Wait until the stream has come here."""
        if self._stream is not None and self._last is not None:
            self._stream.flush(self._last)

    @property
    def done(self) -> bool:
        """Whether the stream has come here. Each look gives it the time for one more piece of work."""
        if self._stream is None or self._last not in self._stream._queue:
            return True
        self._stream._queue.pop(0)()
        return False


_streams: dict[int, Stream] = {}
Stream.null = Stream(null=True)


class _Here(threading.local):
    """What is current in a thread, which begins with the null stream of device 0."""

    def __init__(self) -> None:
        self.stream = Stream.null
        self.entered = [Stream.null]
        self.device = 0


_here = _Here()


def current() -> Stream:
    """The stream that this thread's work goes to."""
    return _here.stream


get_current_stream = current

#: What has been launched, by name, since somebody cleared it; "copy of an operand" where CuPy makes one in secret,
#: "wait" where the host waits for the device.
launched: deque[str] = deque(maxlen=100_000)


def get_cublas_handle() -> int:
    """A handle that only `cublas` here takes."""
    return 1


def get_elapsed_time(start: Event, stop: Event) -> float:
    """Milliseconds between two events: the fake keeps no time."""
    return 1.0


class Device:
    """A device of `FAKE_CUPY_DEVICES`, 1 if not set."""

    attributes: ClassVar = {"MultiProcessorCount": 1}
    compute_capability = "90"
    mem_info = (1 << 33, 1 << 34)

    def __init__(self, device: int | None = None) -> None:
        self.id = _here.device if device is None else device
        if not 0 <= self.id < runtime.getDeviceCount():
            raise runtime.CUDARuntimeError(f"cudaErrorInvalidDevice: device {device}")

    def use(self) -> "Device":
        """Make it the current device."""
        _here.device = self.id
        return self

    def synchronize(self) -> None:
        """Wait for every stream."""
        for stream in list(_streams.values()):
            stream.flush()

    def __enter__(self) -> "Device":
        self._outer = _here.device
        return self.use()

    def __exit__(self, *_: object) -> None:
        _here.device = self._outer


class PinnedMemoryPointer(bytearray):
    """Host memory; `numpy.frombuffer` sees it."""

    @property
    def ptr(self) -> int:
        """Its address."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self))


def alloc_pinned_memory(size: int) -> PinnedMemoryPointer:
    """`size` bytes of host memory, full of garbage."""
    return PinnedMemoryPointer(b"\xcd" * size)


class CUDARuntimeError(RuntimeError):
    """An error of the CUDA runtime."""


def _memcpy_async(target: int, source: int, size: int, kind: int, stream: int) -> None:
    _streams[stream].submit(lambda: ctypes.memmove(target, source, size))


def _memcpy(target: int, source: int, size: int, kind: int) -> None:
    current().flush()
    ctypes.memmove(target, source, size)


def _properties(device: int) -> dict[str, Any]:
    return {"name": b"fake", "totalGlobalMem": 1 << 34, "major": 9, "minor": 0, "multiProcessorCount": 1}


nvrtc = SimpleNamespace(getVersion=lambda: (13, 0))
runtime = SimpleNamespace(
    CUDARuntimeError=CUDARuntimeError,
    getDeviceCount=lambda: int(os.environ.get("FAKE_CUPY_DEVICES", "1")),
    getDevice=lambda: _here.device,
    setDevice=lambda device: Device(device).use() and None,
    getDeviceProperties=_properties,
    driverGetVersion=lambda: 13000,
    runtimeGetVersion=lambda: 13000,
    deviceSynchronize=lambda: Device().synchronize(),
    memcpyAsync=_memcpy_async,
    memcpy=_memcpy,
    memcpyHostToDevice=1,
    memcpyDeviceToHost=2,
    memcpyDeviceToDevice=3,
    memcpyDefault=4,
)
