"""CUDA's streams and events, as far as CuPy's are used."""

from types import TracebackType
from typing import Protocol


class StreamEvent(Protocol):
    """A mark in a stream, reached when all work before it has run."""

    @property
    def done(self) -> bool: ...

    def record(self, stream: "Stream", /) -> None: ...

    def synchronize(self) -> None: ...


class Stream(Protocol):
    """Work that runs in order. Entered as a context, it takes the kernels that are launched."""

    @property
    def ptr(self) -> int: ...

    def __enter__(self) -> "Stream": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def wait_event(self, event: StreamEvent, /) -> None: ...

    def synchronize(self) -> None: ...
