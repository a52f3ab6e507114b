"""How fast workers are, as a master sees it."""

from collections import deque
from collections.abc import Callable, Sequence

LATEST = 4  # rounds of a worker that count: a master that is busy takes note of some of them late


class Speeds:
    """The speed of each worker: measured samples a second, or those `given`, repeated if there are more workers."""

    def __init__(self, given: Sequence[float], clock: Callable[[], float], workers: Sequence[int]) -> None:
        self._clock, self._began = clock, dict[int, float]()
        self._rounds = {worker: deque[float](maxlen=LATEST) for worker in workers}
        self._given = {worker: given[number % len(given)] for number, worker in enumerate(workers)} if given else {}

    def began(self, worker: int) -> None:
        """Note that a worker gets samples now."""
        self._began[worker] = self._clock()

    def ended(self, worker: int, samples: int) -> None:
        """Note that a worker has trained on `samples` samples since `began`."""
        if (seconds := self._clock() - self._began[worker]) > 0:
            self._rounds[worker].append(samples / seconds)

    def of(self, worker: int) -> tuple[float, float]:
        """The speeds of a worker and of the fastest; equal as long as that worker's speed is not known."""
        known = self._given or {each: max(rounds) for each, rounds in self._rounds.items() if rounds}
        fastest = max(known.values(), default=1.0)
        return known.get(worker, fastest), fastest
