"""The course of a collective: its messages pass the nodes' cards like any others, so that they delay each other."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mpitrain.simulation.network import Wires
from mpitrain.simulation.rounds import Round
from mpitrain.simulation.scheduler import Scheduler

NOBODY = -1


class MessageStep(NamedTuple):
    """What a rank does in a round: send so many bytes to a place, and take a message, or only one of both."""

    number: int
    to: int
    nbytes: int
    takes: bool


Steps = Sequence[Sequence[MessageStep]]


def steps_of(rounds: Iterable[Round], ranks: int) -> Steps:
    """The steps of each rank; rounds in which one has nothing to do are none of its own."""
    steps: list[list[MessageStep]] = [[] for _ in range(ranks)]
    for number, messages in enumerate(rounds):
        sends = {source: (target, nbytes) for source, target, nbytes in messages}
        takes = {target for _, target, _ in messages}
        for rank in sorted(sends.keys() | takes):
            steps[rank].append(MessageStep(number, *sends.get(rank, (NOBODY, 0)), rank in takes))
    return steps


class Course:
    """One collective under way. It needs no turns of the ranks: only events, one for all steps that begin at a time.
    `ended(place)` is called when a rank's last step is done."""

    def __init__(
        self, scheduler: Scheduler, wires: Wires, members: Sequence[int], steps: Steps, ended: Callable[[int], None]
    ) -> None:
        self._scheduler, self._wires, self._members, self._ended = scheduler, wires, members, ended
        self._left = [iter(each) for each in steps]
        self._came: dict[tuple[int, int], float] = {}  # by round and place: when a message will be there
        self._waits: dict[tuple[int, int], float] = {}  # by round and place: until when it sends itself
        self._begins: dict[float, list[int]] = {}
        for place in range(len(members)):
            self._begin(scheduler.now + wires.jitter(), place)

    def _begin(self, time: float, place: int) -> None:
        """A rank's next step begins then."""
        if time in self._begins:
            self._begins[time].append(place)
        else:
            self._begins[time] = [place]
            self._scheduler.at(time, lambda: self._turn(time))

    def _turn(self, time: float) -> None:
        for place in self._begins.pop(time):
            step = next(self._left[place], None)
            if step is None:
                self._ended(place)
            else:
                self._take(step, place, self._send(step, place) if step.to != NOBODY else time)

    def _send(self, step: MessageStep, place: int) -> float:
        """When the message has left."""
        to = (step.number, step.to)
        left, arrival = self._wires.passage(
            self._scheduler.now, step.nbytes, self._members[place], self._members[step.to]
        )
        if to in self._waits:
            self._begin(max(self._waits.pop(to), arrival), step.to)
        else:
            self._came[to] = arrival
        return left

    def _take(self, step: MessageStep, place: int, left: float) -> None:
        """Go on when what is sent has left, and what is awaited is there."""
        here = (step.number, place)
        if not step.takes:
            self._begin(left, place)
        elif here in self._came:
            self._begin(max(left, self._came.pop(here)), place)
        else:
            self._waits[here] = left
