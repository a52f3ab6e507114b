"""Records what one rank did and when, from its stopwatch, traffic and counters, in a bounded number of events."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from mpitrain.stopwatch import Activity

T = TypeVar("T")


class FirstAndLast(Generic[T]):
    """Keeps the first and the last items added, half of `most` each; those between are counted as `dropped`."""

    def __init__(self, most: int) -> None:
        self._first: list[T] = []
        self._half, self.dropped = most // 2, 0
        self._last = deque[T](maxlen=most - most // 2)

    def add(self, each: T) -> None:
        """Add one more item."""
        if len(self._first) < self._half:
            self._first.append(each)
        else:
            self.dropped += len(self._last) == self._last.maxlen
            self._last.append(each)

    def __iter__(self) -> Iterator[T]:
        return chain(self._first, self._last)


@dataclass(slots=True)
class Stretch:
    """A stretch of time of one kind, by the rank's clock. `looking`: seconds that a wait spent polling in it."""

    kind: str
    began: float
    ended: float
    about: Activity | None
    looking: float = 0.0

    def may_bridge(self, between: "Stretch") -> bool:
        """Whether this stretch may go on after `between`, as that is short enough."""
        return self.about is not None and between.ended - between.began <= self.about.pause

    def extend(self, new: "Stretch", between: "Stretch | None" = None) -> bool:
        """Extend this stretch by a new one, if both are of the same activity; returns whether they are."""
        if new.about is not self.about or new.kind != self.kind or not (between is None or self.may_bridge(between)):
            return False
        if between is not None and between.kind != self.kind:
            self.looking += between.ended - between.began
        self.ended = new.ended
        return True


@dataclass(frozen=True, slots=True)
class Instant:
    """A message that left, or an update."""

    name: str
    at: float
    arguments: Mapping[str, int]


class TimeRecorder:
    """The `Listener` of one rank, which keeps at most this many stretches of time and as many instants.

    A wait, which sleeps and polls in turns, is one stretch from its first sleep to its last. So is an update, which is
    made block by block.
    """

    def __init__(self, clock: Callable[[], float], most: int) -> None:
        self._clock, self.began = clock, clock()
        self.stretches, self.instants = FirstAndLast[Stretch](most), FirstAndLast[Instant](most)
        self._last: Stretch | None = None  # the stretch that may go on
        self._between: Stretch | None = None  # the stretch after it, perhaps only between two parts of it

    def stretch(self, kind: str, began: float, ended: float, about: Activity | None) -> None:
        if ended <= began:
            return
        new = Stretch(kind, began, ended, about)
        while (last := self._last) is not None and not last.extend(new, self._between):
            if self._between is None and last.may_bridge(new):
                self._between = new
                return
            if self._between is not None and self._between.extend(new):
                return
            self.stretches.add(last)
            self._last, self._between = self._between, None
        self._last, self._between = last or new, None

    def instant(self, name: str, arguments: Mapping[str, int]) -> None:
        self.instants.add(Instant(name, self._clock(), arguments))

    def close(self) -> None:
        """End the last stretch."""
        for each in (self._last, self._between):
            if each is not None:
                self.stretches.add(each)
        self._last = self._between = None
