"""Who trains on what without anybody to ask: minibatch m of the queue belongs to the m-th of the ranks, round by round.

A round is named by its place in the queue, which is the same number on every rank, however far each is.
"""

from dataclasses import dataclass

from mpitrain.sampling.queue import Queue, Work
from mpitrain.sampling.stages import Schedule, Settings

#: The place of one who has no work left: after every other.
END = 1 << 62


@dataclass(frozen=True)
class PeerRound:
    """One minibatch for each rank that trains at `place`, but for the last round's last ranks; `after` is the next."""

    place: int
    after: int
    works: list[Work]
    settings: list[Settings]
    workers: int


@dataclass(frozen=True)
class Turn:
    """A rank's minibatch of the round at `place`; it trains in all rounds from `since` to this one."""

    place: int
    after: int
    work: Work
    settings: Settings
    workers: int
    since: int


class Rounds:
    """The rounds of a training by `ranks` ranks, from `queue` on, which stays as it is."""

    def __init__(self, queue: Queue, schedule: Schedule, ranks: int) -> None:
        self._queue, self._schedule, self._ranks = queue, schedule, ranks

    def at(self, place: int) -> PeerRound | None:
        """The round at a place; None after the last."""
        if place >= self._queue.end:
            return None
        workers = self._settings(place).workers or self._ranks
        works, after = self._queue.take(self._schedule, place, workers)
        settings, at = [], place
        for work in works:
            settings.append(self._settings(at))
            at += work.count
        return PeerRound(place, after, works, settings, workers)

    def turn(self, number: int, place: int, since: int = 0) -> Turn | None:
        """The next minibatch of the rank with this number, from the round at `place` on; None when there is none.

        `since` is that of its turn before.
        """
        while (now := self.at(place)) is not None:
            if number >= now.workers:
                since = now.after
            elif number < len(now.works):
                return Turn(place, now.after, now.works[number], now.settings[number], now.workers, since)
            place = now.after
        return None

    def remaining(self, places: list[int]) -> Queue:
        """What is left when rank i has done its part of all rounds before `places[i]`, to be handed out anew."""
        furthest = min(max(places), self._queue.end)
        left, place = self._queue.after(furthest), min(places)
        while place < furthest and (now := self.at(place)) is not None:
            left.returned += [work for work, reached in zip(now.works, places, strict=False) if reached <= place]
            place = now.after
        left.returned.sort(key=lambda work: (work.epoch, work.start))
        return left

    def _settings(self, place: int) -> Settings:
        return self._schedule.at(self._queue.position_at(place))
