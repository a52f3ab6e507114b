"""Hand out the samples to train on next, as ranges of an epoch's order, each exactly once.

A range is a position in the global order of all epochs, so that it denotes the same samples on every rank and in every
run with the same seed. Samples that a rank did not use before a run stopped are handed out again.
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
        """The minibatches in order; the last one may be smaller."""
        for start in range(self.start, self.start + self.count, self.minibatch):
            yield replace(self, start=start, count=min(self.minibatch, self.start + self.count - start))

    def rest(self, used: int) -> "Work":
        """The remaining range after the first `used` samples."""
        return replace(self, start=self.start + used, count=self.count - used)

    def share(self, part: int, parts: int) -> "Work":
        """One of `parts` shares whose sizes differ by at most one."""
        begin, end = part * self.count // parts, (part + 1) * self.count // parts
        return replace(self, start=self.start + begin, count=end - begin)


@dataclass
class Assignments:
    """Hands out ranges of epochs of `samples` samples until `total` positions are served.

    `position` counts the samples handed out for the first time; `returned` are ranges to hand out again.
    """

    samples: int
    total: int
    position: int = 0
    returned: list[Work] = field(default_factory=list)

    def next(self, minibatch: int, minibatches: int = 1, limit: int | None = None) -> Work | None:
        """Up to `minibatches` minibatches of one epoch, of at most `limit` samples; None if everything is served."""
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
        """The range that `next` would return, without handing it out."""
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
    """The record of the samples that free-running workers have taken but not trained on.

    A worker names its unused ranges one by one and then closes the list. It may do so several times: for checkpoints,
    and when it ends. Each closed list replaces the worker's previous one, so that no range is recorded twice or lost.
    """

    def __init__(self) -> None:
        self._named: dict[int, list[Work]] = {}
        self._closed: dict[int, list[Work]] = {}

    def name(self, worker: int, work: Work) -> None:
        """Add a range to the worker's next list."""
        self._named.setdefault(worker, []).append(work)

    def close(self, worker: int) -> None:
        """Close the worker's list, which then replaces its previous one."""
        self._closed[worker] = self._named.pop(worker, [])

    @property
    def ranges(self) -> list[Work]:
        """All ranges in the newest lists. They are consistent if every worker has closed its list since it last took or
        used samples."""
        return [work for worker in sorted(self._closed) for work in self._closed[worker]]
