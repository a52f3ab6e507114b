"""The samples of a training as one queue: ranges of an epoch's order, each handed out exactly once.

A range is a position in the global order of all epochs, so that it denotes the same samples on every rank and in every
run with the same seed. Samples that a rank did not use before a run stopped come first when it goes on.

The queue is read in two ways. A dispenser takes ranges from its head (`next`). Ranks that need no dispenser share one
number, the place in a queue that is not changed: each derives the next minibatches from it (`take`), so that a single
compare-and-swap claims them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, field, replace
from typing import Annotated

import msgspec

from mpitrain.flat import share
from mpitrain.sampling.stages import Schedule

Natural = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
Positive = Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]
#: A range in a checkpoint: epoch, start, count, minibatch.
Row = tuple[Natural, Natural, Positive, Positive]


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
            yield Work(self.epoch, start, min(self.minibatch, self.start + self.count - start), self.minibatch)

    def position(self, samples: int) -> int:
        """Its first position in the global order of epochs of this many samples, from which its settings follow."""
        return self.epoch * samples + self.start

    def rest(self, used: int) -> "Work":
        """The remaining range after the first `used` samples."""
        return Work(self.epoch, self.start + used, self.count - used, self.minibatch)

    def share(self, part: int, parts: int) -> "Work":
        """One of `parts` shares whose sizes differ by at most one."""
        own = share(self.count, part, parts)
        return Work(self.epoch, self.start + own.start, own.stop - own.start, self.minibatch)


def joined(works: Iterable[Work]) -> list[Work]:
    """Minibatches as few ranges, which `Work.minibatches` cuts into the same ones."""
    ranges: list[Work] = []
    for work in works:
        before = ranges[-1] if ranges else work
        if before.count % work.minibatch == 0 and before.rest(before.count) == replace(work, count=0):
            ranges[-1] = replace(before, count=before.count + work.count)
        else:
            ranges.append(work)
    return ranges


def to_rows(works: Iterable[Work]) -> list[Row]:
    """The ranges for a checkpoint."""
    return [astuple(work) for work in works]


def of_rows(rows: Iterable[Row], samples: int) -> list[Work]:
    """The ranges that a checkpoint holds. Raises ValueError for one beyond an epoch of this many samples."""
    works = [Work(*row) for row in rows]
    if any(work.start + work.count > samples for work in works):
        raise ValueError(f"a range of samples goes beyond the {samples} samples of an epoch")
    return works


@dataclass
class Queue:
    """Ranges of epochs of `samples` samples, until `total` positions are handed out.

    `position` counts the samples handed out for the first time; `returned` are ranges to hand out again, before all
    others. A place counts samples from the queue's head.
    """

    samples: int
    total: int
    position: int = 0
    returned: list[Work] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The place of the end: the number of samples to hand out."""
        return sum(work.count for work in self.returned) + max(self.total - self.position, 0)

    def position_at(self, place: int = 0) -> int:
        """The position of the sample at a place. A sample that is handed out again keeps its position."""
        for work in self.returned:
            if place < work.count:
                return work.position(self.samples) + place
            place -= work.count
        return self.position + place

    def at(self, place: int, minibatch: int, minibatches: int = 1, limit: int | None = None) -> Work | None:
        """The range at a place: up to `minibatches` minibatches of one epoch; None at the end.

        A range that is handed out for the first time is at most `limit` samples long.
        """
        most = minibatch * minibatches
        for work in self.returned:
            if place < work.count:
                return replace(work.rest(place), count=min(work.count - place, most), minibatch=minibatch)
            place -= work.count
        position = self.position + place
        if position >= self.total:
            return None
        epoch, start = divmod(position, self.samples)
        return Work(epoch, start, min(most, self.samples - start, self.total - position, limit or most), minibatch)

    def after(self, place: int) -> "Queue":
        """What is left of the queue once the samples before `place` have been handed out."""
        left, before = list[Work](), place
        for work in self.returned:
            used = min(max(before, 0), work.count)
            before -= work.count
            if used < work.count:
                left.append(work.rest(used))
        return Queue(self.samples, self.total, self.position + max(before, 0), left)

    def take(
        self, schedule: Schedule, place: int, minibatches: int, worker: int = 0, group: int = 0
    ) -> tuple[list[Work], int]:
        """Minibatches from a place on, each of one epoch and one stage, and the place after them.

        There are fewer than `minibatches` at the end, and none for a worker whose number is beyond the stage's workers.
        With `group` there are more, up to the end of a group of this many samples that an epoch's order has together.
        """
        taken: list[Work] = []
        active = schedule.at(self.position_at(place)).workers
        inside = False
        while (inside or len(taken) < minibatches) and (active is None or worker < active):
            position = self.position_at(place)
            work = self.at(place, schedule.at(position).minibatch, limit=schedule.until_change(position))
            if work is None:
                break
            if group:
                work = replace(work, count=min(work.count, self.left_of_group(work, group)))
                inside = work.count < self.left_of_group(work, group)
            taken.append(work)
            place += work.count
        return taken, place

    def left_of_group(self, work: Work, group: int) -> int:
        """The number of samples from where a range starts to the end of its group, or of the epoch."""
        return min(group - work.start % group, self.samples - work.start)

    # ---- as a dispenser

    def next(self, minibatch: int, minibatches: int = 1, limit: int | None = None) -> Work | None:
        """Hand out the range at the head, as `at` describes it; None if everything has been handed out."""
        work = self.at(0, minibatch, minibatches, limit)
        if work is not None:
            rest = self.after(work.count)
            self.position, self.returned = rest.position, rest.returned
        return work

    def next_of_group(self, group: int, limit: int | None = None) -> Work | None:
        """Hand out what is left of the group of this many samples at the head, as one range, at most `limit` long."""
        head = self.at(0, 1)
        return None if head is None else self.next(self.left_of_group(head, group), limit=limit)

    def give_back(self, work: Work) -> None:
        """Hand this range out again, before any other."""
        if work.count > 0:
            self.returned.append(work)
            self.returned.sort(key=lambda each: (each.epoch, each.start))

    def rewind(self) -> None:
        """Take ranges to hand out again that end at the position for ranges that were never handed out, so that they
        are divided like those."""
        while self.returned:
            work = self.returned[-1]
            if work.position(self.samples) + work.count != self.position:
                return
            self.position -= self.returned.pop().count

    @property
    def exhausted(self) -> bool:
        """Whether everything has been handed out."""
        return not self.returned and self.position >= self.total
