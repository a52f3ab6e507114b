"""Where a rank's time goes: computing, data, communication and waiting, as the EASGD paper's supplement tables it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

PLAIN_EVERY = 10.0  # seconds between two lines of progress where there is no live line
#: "computing": gradients, with what is done as their parts become final; "data": minibatches that were not read ahead;
#: "communication": the rank's own messages, collectives and one-sided operations; "waiting": until other ranks have
#: done something; "evaluation"; "rest": updates, checkpoints and everything else.
KINDS = ("computing", "data", "communication", "waiting", "evaluation", "rest")


@dataclass(frozen=True, eq=False)
class Activity:
    """What some time went to. For a wait: the ranks waited for, `whom` (None: all) and this many `more`, and the number
    of bytes awaited. Two stretches of one activity count as one if something else interrupts it for at most `pause`
    seconds, as polls do between the sleeps of a wait."""

    what: str
    whom: tuple[int, ...] | None = None
    nbytes: int | None = None
    pause: float = 0.0
    more: int = 0


class Listener(Protocol):
    """Hears what a rank does, for a trace."""

    def stretch(self, kind: str, began: float, ended: float, about: Activity | None) -> None:
        """The stopwatch counted for one kind from `began` to `ended`; the stretch before ended at `began`."""

    def instant(self, name: str, arguments: Mapping[str, int]) -> None:
        """An event of this name happens now."""


class Stopwatch:
    """Seconds by kind. One kind counts at a time: an inner one interrupts the outer one."""

    listener: Listener | None = None

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.start()

    def start(self) -> None:
        """Count from now on."""
        self.seconds = dict.fromkeys(KINDS, 0.0)
        self._kind, self._since = "rest", self._clock()
        self._about: Activity | None = None

    def switch(self, kind: str, about: Activity | None = None) -> None:
        """Count for another kind from now on."""
        now = self._clock()
        self.seconds[self._kind] += now - self._since
        if self.listener is not None:
            self.listener.stretch(self._kind, self._since, now, self._about)
        self._kind, self._about, self._since = kind, about, now

    def on(self, kind: str, about: Activity | None = None) -> AbstractContextManager[None]:
        """Context that counts for a kind."""
        return _Counting(self, kind, about)

    @property
    def counts(self) -> tuple[str, Activity | None]:
        """The kind that counts now, and what its time goes to."""
        return self._kind, self._about

    def about(self, about: Activity) -> AbstractContextManager[None]:
        """Context that counts for the same kind, and says what the time goes to."""
        return self.on(self._kind, about)

    def read(self) -> dict[str, float]:
        """The seconds by kind until now."""
        self.switch(self._kind, self._about)
        return dict(self.seconds)


class _Counting(AbstractContextManager[None]):
    """One use of `Stopwatch.on`; a generator would take three times as long, at every wait."""

    __slots__ = ("_about", "_before", "_kind", "_stopwatch")

    def __init__(self, stopwatch: Stopwatch, kind: str, about: Activity | None) -> None:
        self._stopwatch, self._kind, self._about = stopwatch, kind, about

    def __enter__(self) -> None:
        self._before = self._stopwatch.counts
        self._stopwatch.switch(self._kind, self._about)

    def __exit__(self, *raised: object) -> None:
        self._stopwatch.switch(*self._before)


def shares(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The share of each kind in the sum of the ranks' times; 0 for all kinds if that sum is 0."""
    sums = {kind: sum(each[kind] for each in ranks) for kind in KINDS}
    total = sum(sums.values())
    return {kind: seconds / total if total else 0.0 for kind, seconds in sums.items()}


def shares_text(ranks: Sequence[Mapping[str, float]]) -> str:
    """The shares as a text for the closing table, without kinds below half a percent."""
    return ", ".join(f"{kind} {share:.0%}" for kind, share in shares(ranks).items() if share >= 0.005)
