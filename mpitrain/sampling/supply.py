"""The samples of a training as one queue from which ranks take minibatches without a dispenser.

A place in the queue is one number, so that a single compare-and-swap takes minibatches: every rank can derive the next
minibatches from this number. Samples that a stopped run had handed out but not used come first.
"""

from mpitrain.sampling.assignments import Assignments, Work
from mpitrain.schedules.stages import Schedule, Settings


class Supply:
    """The queue at a start or resume; places count samples from there."""

    def __init__(self, assignments: Assignments, schedule: Schedule) -> None:
        self._samples, self._schedule = assignments.samples, schedule
        self._returned = list(assignments.returned)
        self._again = sum(work.count for work in self._returned)
        self._begin = assignments.position
        self.end = self._again + assignments.total - assignments.position

    def position(self, place: int) -> int:
        """Number of samples handed out for the first time, including those before this start."""
        return self._begin + max(place - self._again, 0)

    def settings(self, place: int) -> Settings:
        """The settings of the minibatch at `place`."""
        return self._schedule.at(self.position(place))

    def take(self, place: int, minibatches: int, worker: int = 0) -> tuple[list[Work], int]:
        """The next `minibatches` minibatches, each of one epoch and one stage, and the place after them.

        At the end there may be fewer; there are none for a worker whose number is beyond the stage's workers.
        """
        taken: list[Work] = []
        active = self.settings(place).workers
        if active is not None and worker >= active:
            return taken, place
        while len(taken) < minibatches and place < self.end:
            taken.append(self._at(place))
            place += taken[-1].count
        return taken, place

    def returned(self, place: int) -> list[Work]:
        """The remaining ranges of the samples that come first."""
        left = []
        for work in self._returned:
            used = min(max(place, 0), work.count)
            place -= work.count
            if used < work.count:
                left.append(work.rest(used))
        return left

    def _at(self, place: int) -> Work:
        size = self.settings(place).minibatch
        if place < self._again:
            work = self.returned(place)[0]
            return Work(work.epoch, work.start, min(size, work.count), size)
        position = self.position(place)
        epoch, start = divmod(position, self._samples)
        return Work(epoch, start, min(size, self._samples - start, self._schedule.until_change(position)), size)
