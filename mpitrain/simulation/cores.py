"""The cores of a simulated node: ranks that compute at the same time share them."""

from collections.abc import Callable

from mpitrain.simulation.scheduler import Scheduler


class Cores:
    """While more ranks compute than there are cores, all of them are slowed alike."""

    def __init__(self, scheduler: Scheduler, count: int) -> None:
        self._scheduler, self._count = scheduler, count
        self._left: dict[int, float] = {}  # by rank: seconds on a core of its own
        self._since, self._plans = 0.0, 0

    def compute(self, rank: int, seconds: float) -> None:
        """The running rank computes what takes so many seconds on a core of its own."""
        self._advance()
        self._left[rank] = seconds
        self._plan()
        self._scheduler.suspend(rank)

    @property
    def _speed(self) -> float:
        return min(1.0, self._count / len(self._left))

    def _advance(self) -> None:
        now = self._scheduler.now
        if self._left:
            done = (now - self._since) * self._speed
            self._left = {rank: left - done for rank, left in self._left.items()}
        self._since = now

    def _plan(self) -> None:
        """Wait for the first to end; a plan that is overtaken by another rank's is dropped."""
        self._plans += 1
        if self._left:
            first = min(self._left, key=lambda rank: self._left[rank])
            time = self._since + max(self._left[first], 0.0) / self._speed
            self._scheduler.at(time, self._end_of(first, self._plans))

    def _end_of(self, rank: int, plan: int) -> Callable[[], None]:
        def end() -> None:
            if plan == self._plans:
                self._advance()
                del self._left[rank]
                self._plan()
                self._scheduler.resume(rank)

        return end
