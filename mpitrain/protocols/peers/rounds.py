"""Which rank trains on what, without a dispenser: in every round, the m-th minibatch belongs to the m-th rank.

A round is named by its place in the queue: the same number on every rank, however far each rank has come.
"""

from dataclasses import dataclass

from mpitrain.sampling.queue import Queue, Work
from mpitrain.sampling.stages import Schedule, Settings

#: The place of a rank that has no work left: after all rounds.
END = 1 << 62
#: Minibatches of one rank, with the settings of their stages.
Steps = list[tuple[Work, Settings]]


@dataclass(frozen=True)
class PeerRound:
    """The round at `place`: equally many minibatches for each of `workers` ranks, or fewer in the last round. The next
    round is at `after`."""

    place: int
    after: int
    steps: Steps
    workers: int

    def of(self, number: int) -> Steps:
        """The minibatches of the rank with this number."""
        return self.steps[number :: self.workers] if number < self.workers else []


@dataclass(frozen=True)
class Turn(PeerRound):
    """One rank's minibatches of a round; it trains in all rounds from `since` to this one."""

    since: int


class Rounds:
    """The rounds, of `tau` minibatches a rank, of a training by `ranks` ranks on a `queue`, which is not changed."""

    def __init__(self, queue: Queue, schedule: Schedule, ranks: int, tau: int = 1) -> None:
        self._queue, self._schedule, self._ranks, self._tau = queue, schedule, ranks, tau

    def at(self, place: int) -> PeerRound | None:
        """The round at a place; None after the last."""
        if place >= self._queue.end:
            return None
        workers = self._settings(place).workers or self._ranks
        works, after = self._queue.take(self._schedule, place, workers * self._tau)
        steps, at = [], place
        for work in works:
            steps.append((work, self._settings(at)))
            at += work.count
        return PeerRound(place, after, steps, workers)

    def turn(self, number: int, place: int, since: int = 0) -> Turn | None:
        """The next minibatches of the rank with this number, from the round at `place` on; None when there is none.

        `since` is that of this rank's previous turn.
        """
        while (now := self.at(place)) is not None:
            if number >= now.workers:
                since = now.after
            elif steps := now.of(number):
                return Turn(place, now.after, steps, now.workers, since)
            place = now.after
        return None

    def remaining(self, places: list[int], reached: int) -> Queue:
        """What is left when rank i has done its part of all rounds before `places[i]`, to be handed out anew.

        `reached`: where the last round ends in which any rank has trained. The places do not tell: the place of a
        rank that has no turn before a later stage, or none at all, lies far beyond.
        """
        furthest = min(reached, self._queue.end)
        left, place = self._queue.after(furthest), min(places)
        while place < furthest and (now := self.at(place)) is not None:
            behind = [number for number, next_place in enumerate(places) if next_place <= place]
            left.returned += [work for number in behind for work, _ in now.of(number)]
            place = now.after
        left.returned.sort(key=lambda work: (work.epoch, work.start))
        return left

    def _settings(self, place: int) -> Settings:
        return self._schedule.at(self._queue.position_at(place))
