"""Which samples are trained on next: ranges of an epoch's order, each handed out once.

A range is a position in the global order of all epochs, so that it names the same samples on every rank and in every
run with the same seed. What a rank did not use, or what was in flight when a run stopped, is handed out again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Work:
    """`count` samples from position `start` of epoch `epoch`, to be cut into minibatches of `minibatch`."""

    epoch: int
    start: int
    count: int
    minibatch: int

    def minibatches(self) -> Iterator["Work"]:
        """The minibatches in order; the last may be short."""
        for start in range(self.start, self.start + self.count, self.minibatch):
            yield replace(self, start=start, count=min(self.minibatch, self.start + self.count - start))

    def rest(self, used: int) -> "Work":
        """What is left after the first `used` samples."""
        return replace(self, start=self.start + used, count=self.count - used)

    def share(self, part: int, parts: int) -> "Work":
        """One of `parts` shares whose sizes differ by at most one."""
        begin, end = part * self.count // parts, (part + 1) * self.count // parts
        return replace(self, start=self.start + begin, count=end - begin)


@dataclass
class Assignments:
    """Hands out ranges of `samples` samples an epoch until `total` positions are served.

    `position` counts the samples handed out for the first time; `returned` are ranges to hand out again.
    """

    samples: int
    total: int
    position: int = 0
    returned: list[Work] = field(default_factory=list)

    def next(self, minibatch: int, minibatches: int = 1, limit: int | None = None) -> Work | None:
        """Up to `minibatches` minibatches of one epoch, at most `limit` samples of them; None when all is served."""
        most = minibatch * minibatches
        if self.returned:
            work = self.returned.pop(0)
            if work.count > most:
                self.returned.insert(0, work.rest(most))
            return replace(work, count=min(work.count, most), minibatch=minibatch)
        left = self.total - self.position
        if left <= 0:
            return None
        epoch, start = divmod(self.position, self.samples)
        count = min(most, self.samples - start, left, limit or left)
        self.position += count
        return Work(epoch, start, count, minibatch)

    def peek(self, minibatch: int, limit: int | None = None) -> Work | None:
        """What `next` would hand out, without handing it out."""
        return replace(self, returned=list(self.returned)).next(minibatch, 1, limit)

    def give_back(self, work: Work) -> None:
        """Hand this range out again, before any other."""
        if work.count > 0:
            self.returned.append(work)
            self.returned.sort(key=lambda each: (each.epoch, each.start))

    @property
    def exhausted(self) -> bool:
        """Whether everything has been handed out."""
        return not self.returned and self.position >= self.total


class Unused:
    """What free-running workers have taken and not trained on: the one record of it.

    A worker names its unused ranges one by one and then closes the list, perhaps several times: for a checkpoint, and
    when it ends. Each closed list replaces the worker's last one, so that no range is recorded twice or dropped,
    whichever of them comes first.
    """

    def __init__(self) -> None:
        self._named: dict[int, list[Work]] = {}
        self._closed: dict[int, list[Work]] = {}

    def name(self, worker: int, work: Work) -> None:
        """A range of the worker's next list."""
        self._named.setdefault(worker, []).append(work)

    def close(self, worker: int) -> None:
        """The worker's list is complete."""
        self._closed[worker] = self._named.pop(worker, [])

    @property
    def ranges(self) -> list[Work]:
        """Everything in the newest lists. They are of one moment when every worker has closed its own since it last
        took or used samples."""
        return [work for worker in sorted(self._closed) for work in self._closed[worker]]
