"""Simulated ranks that can die or stand still, under a communicator that raises what MPI with ULFM raises.

A rank that dies gets no turn any more, wherever it is. Of what it has sent, a random part still arrives, and one
message may arrive torn: it is seen, and its content never comes. The others hear of it one after another. What a rank
knows by then it may still use, or be refused; memory that an operation which fails should have filled has no meaning.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import numpy as np

from mpitrain.errors import RankLost
from mpitrain.mpi import MPI, Transport
from mpitrain.mpi.enduring import EnduringCommunicator, Family
from mpitrain.simulation.communicator import Group, SimulatedCommunicator
from mpitrain.simulation.job import Aborted, Job
from mpitrain.simulation.messages import Mailbox, SentMessage, SimulatedRequest, raw
from mpitrain.simulation.scheduler import Deadlock

ARRIVES = 0.7  # how probably the next message of a dead rank does
SEEN = 0.5  # how probably one takes what has come from a rank that is known to have died
BROKEN = 0.5  # how probably a collective under way does not end where one of its ranks dies
LATE = 0.2  # how probably a message that has been matched comes later


class Mortals(Job[int]):
    """A job whose ranks can be killed or frozen; who hears of a death does so `slowness` seconds later in the mean."""

    def __init__(self, ranks: int, seed: int, slowness: float, deadline: float, **more: Any) -> None:
        self.standing: dict[int, list[tuple[float, float]]] = {rank: [] for rank in range(ranks)}
        super().__init__(ranks, deadline=deadline, stops=self.standing, **more)
        self.random, self._slowness = np.random.default_rng((seed, 7)), slowness
        self.groups: list[MortalGroup] = []
        self._world = self.group = MortalGroup(self, range(ranks))
        self.dead: dict[int, float] = {}  # since when
        self._heard: dict[tuple[int, int], float] = {}  # when a rank hears of another's death
        self.struck: dict[int, float] = {}  # ranks that died or froze, and when the first time
        self.results: dict[int, int] = {}
        self.calls = Counter[int]()
        self.armed: dict[int, tuple[int, float]] = {}  # calls until a rank is struck, and for how long
        self.under_way: dict[int, list[MortalRequest]] = {rank: [] for rank in range(ranks)}

    def run(self, program: Callable[[Transport], int]) -> list[int]:
        """What the program returns on the ranks that live to its end."""

        def on(rank: int) -> int:
            try:
                communicator = Outlasting(Mortal(self.group, rank), Family())
                transport = Transport(communicator, self._deadline, self.runtime(rank))
            except RankLost:
                raise Aborted(rank, 1) from None
            self.results[rank] = program(transport)
            self._ends(rank)
            return self.results[rank]

        try:
            self.scheduler.run([partial(on, rank) for rank in range(self.size)])
        except Deadlock:
            if set(self.results) | self._stuck() != set(range(self.size)) or not self.results:
                raise
        return [self.results[rank] for rank in sorted(self.results)]

    def _stuck(self) -> set[int]:
        return {rank for rank, stops in self.standing.items() if stops and stops[-1][1] == inf}

    # ---- losses

    def arm(self, rank: int, calls: int, seconds: float = inf) -> None:
        """Strike a rank at its call after so many: it dies, or stands still for so long."""
        self.armed[rank] = (calls, seconds)

    def strike(self, rank: int, seconds: float = inf) -> None:
        """At this moment."""
        if rank in self.dead or rank in self.results:
            return
        now = self.scheduler.now
        self.struck.setdefault(rank, now)
        if seconds == inf:
            self.kill(rank)
        else:
            self.standing[rank].append((now, now + seconds))

    def kill(self, rank: int) -> None:
        """A rank is no more."""
        if rank in self.dead or rank in self.results:
            return
        now = self.dead[rank] = self.scheduler.now
        self.struck.setdefault(rank, now)
        self.standing[rank].append((now, inf))
        for request in (request for requests in self.under_way.values() for request in requests):
            request.loses(rank)
        self._ends(rank)

    def _ends(self, rank: int) -> None:
        """The others hear that it is not there any more."""
        for other in range(self.size):
            self._heard[other, rank] = self.later(other)
        for group in list(self.groups):
            group.agree()

    def later(self, rank: int) -> float:
        """When a rank hears of what happens now; it is woken by it."""
        at = self.scheduler.now + float(self.random.exponential(self._slowness))
        self.scheduler.at(at, lambda: self.scheduler.wake(rank))
        return at

    def knows(self, rank: int, other: int) -> bool:
        """Whether a rank has heard that another one is dead."""
        return self._heard.get((rank, other), inf) <= self.scheduler.now

    def end_stopped(self) -> None:
        """What the ranks of a node do to those that stand still."""
        now = self.scheduler.now
        for rank, stops in self.standing.items():
            if any(begins <= now < ends for begins, ends in stops):
                self.kill(rank)

    def called(self, rank: int) -> None:
        """A rank calls MPI; it may not come back."""
        self.calls[rank] += 1
        left, seconds = self.armed.get(rank, (-1, inf))
        if left < 0:
            return
        self.armed[rank] = (left - 1, seconds)
        if left:
            return
        self.strike(rank, seconds)
        if rank in self.dead:
            self.scheduler.suspend(rank)
        else:
            self.scheduler.sleep(rank, 0.0)


class MortalGroup(Group):
    """What the ranks of a communicator share: when each hears that it is revoked, and who has come to leave it."""

    def __init__(self, job: Mortals, members: Any) -> None:
        super().__init__(job.wires, list(members))
        self.job = job
        job.groups.append(self)
        self.boxes = [MortalBox(self, member, partial(job.scheduler.wake, member)) for member in self.members]
        self.revoked = dict.fromkeys(self.members, inf)
        self._leaving: set[int] = set()
        #: What the others make instead, the places of those that are gone, and when each has it.
        self.left: tuple[MortalGroup, list[int], dict[int, float]] | None = None

    def made(self, number: int, key: object, members: Any) -> "MortalGroup":
        if (number, key) not in self._made:
            self._made[number, key] = MortalGroup(self.job, members)
        return self._made[number, key]  # type: ignore[return-value]

    def leave(self, member: int) -> None:
        """A rank has come to leave it."""
        self._leaving.add(member)
        self.agree()

    def agree(self) -> None:
        """Once all that live want to leave, those make another one."""
        over = self.job.dead.keys() | self.job.results
        living = [member for member in self.members if member not in over]
        if self.left is None and self._leaving and self._leaving.issuperset(living):
            gone = [place for place, member in enumerate(self.members) if member not in living]
            self.left = MortalGroup(self.job, living), gone, {member: self.job.later(member) for member in living}


class MortalBox(Mailbox):
    """Takes only a part of what a dead rank has sent, and nothing for one that has left."""

    def __init__(self, group: MortalGroup, member: int, wake: Callable[[], None]) -> None:
        super().__init__(wake)
        self._group, self._member, self._cut = group, member, set[int]()
        self.over = False

    def arrive(self, message: SentMessage) -> None:
        job, source = self._group.job, message.source
        if self.over or self._member in job.dead or source in self._cut:
            return
        if self._group.members[source] in job.dead and job.random.random() > ARRIVES:
            self._cut.add(source)
            if any(s in (source, MPI.ANY_SOURCE) and t in (message.tag, MPI.ANY_TAG) for s, t, _, _ in self._posted):
                return
            message.torn = True  # type: ignore[attr-defined]
        super().arrive(message)

    def close(self) -> None:
        """Nothing comes any more."""
        self.over = True
        self._posted.clear()


class MortalRequest:
    """An operation that needs a rank, or all (None)."""

    def __init__(self, plain: SimulatedRequest, of: "Mortal", partner: int | None, takes: Any = ()) -> None:
        self._plain, self._of, self._partner, self._takes = plain, of, partner, takes
        self._broken = False  # it never ends, as what others were to pass on has not come
        waiting = of.group.job.under_way
        waiting[of.me] = [each for each in waiting[of.me] if not each._plain.done] + [self]

    def Test(self, status: MPI.Status | None = None, /) -> bool:
        if self._broken or not self._plain.done:
            self._of.group.job.called(self._of.me)
            try:
                self._of.require(self._partner)
            except MPI.Exception:
                self.spoil()
                raise
        return not self._broken and self._plain.Test(status)

    def loses(self, rank: int) -> None:
        """A collective may be broken by a rank that dies."""
        random = self._of.group.job.random
        if self._partner is None and not self._plain.done and rank in self._of.group.members:
            self._broken |= random.random() < BROKEN

    def spoil(self) -> None:
        """What it should have filled has no meaning; what it has given, the others may still get."""
        if self._plain.done and not self._broken:
            return
        for collective in self._of.group.collectives.values():
            part = collective.parts.get(self._of.rank)
            if part is not None and part.request is self._plain:
                part.give = None if part.give is None else part.give.copy()
                part.take = [memory.copy() for memory in part.take]
        for memory in self._takes:
            raw(memory).fill(0xFF)


class MortalMatched:
    """A message that was found."""

    def __init__(self, of: "Mortal", plain: Any) -> None:
        self._of, self._plain, self._message = of, plain, plain._message
        self._torn = getattr(self._message, "torn", False)

    def Recv(self, buffer: Any, /) -> None:
        if self._torn:
            raw(buffer).fill(0xFF)
            raise MPI.Exception(MPI.ERR_PROC_FAILED)
        self._plain.Recv(buffer)

    def Irecv(self, buffer: Any, /) -> Any:
        job, source = self._of.group.job, self._message.source
        if not self._torn and job.random.random() > LATE:
            return self._plain.Irecv(buffer)
        request, box = SimulatedRequest(self._of._box.wake), self._of._box

        def comes() -> None:
            if not box.over and self._of.group.revoked[self._of.me] > job.scheduler.now:
                self._plain.Recv(buffer)
                request.complete()

        if not self._torn:
            job.scheduler.at(job.scheduler.now + float(job.random.exponential(1e-3)), comes)
        return MortalRequest(request, self._of, source, [raw(buffer)[: self._message.payload.size]])


class Mortal(SimulatedCommunicator):
    """One rank's handle of what is to be an `EnduringCommunicator`."""

    group: MortalGroup

    def __init__(self, group: MortalGroup, rank: int) -> None:
        super().__init__(group, rank)
        self.me = group.members[rank]

    def require(self, partner: int | None) -> None:
        """Raise MPI's error for what this rank knows: of a partner, or of any."""
        group, job = self.group, self.group.job
        if group.revoked[self.me] <= job.scheduler.now:
            raise MPI.Exception(MPI.ERR_REVOKED)
        whom = range(self.size) if partner in (None, MPI.ANY_SOURCE) else [partner]
        if any(job.knows(self.me, group.members[place]) for place in whom):
            raise MPI.Exception(MPI.ERR_PROC_FAILED)

    def _begin(self, partner: int | None) -> None:
        self.group.job.called(self.me)
        self.require(partner)

    def _look(self, source: int, tag: int) -> None:
        job = self.group.job
        job.called(self.me)
        here = self.group.revoked[self.me] > job.scheduler.now and self._box.find(source, tag) is not None
        if not (here and job.random.random() < SEEN):
            self.require(source)

    def Isend(self, buffer: Any, to: int, tag: int, /) -> Any:
        self._begin(to)
        return MortalRequest(super().Isend(buffer, to, tag), self, to)

    def Issend(self, buffer: Any, to: int, tag: int, /) -> Any:
        self._begin(to)
        return MortalRequest(super().Issend(buffer, to, tag), self, to)

    def Irecv(self, buffer: Any, source: int, tag: int, /) -> Any:
        self._begin(source)
        return MortalRequest(super().Irecv(buffer, source, tag), self, source, [raw(buffer)])

    def Iprobe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, /) -> bool:
        self._look(source, tag)
        return super().Iprobe(source, tag)

    def Improbe(self, source: int, tag: int, status: MPI.Status, /) -> Any:
        self._look(source, tag)
        found = super().Improbe(source, tag, status)
        return None if found is None else MortalMatched(self, found)

    def _join(self, called: Any, give: Any, take: Any, number: int | None = None) -> Any:
        self._begin(None)
        return MortalRequest(super()._join(called, give, take, number), self, None, take)

    def _part(self, colours: Any) -> "Mortal":
        part = super()._part(colours)
        return Mortal(part.group, part.rank)  # type: ignore[arg-type]

    def Idup(self) -> Any:
        duplicate, request = super().Idup()
        return Mortal(duplicate.group, self.rank), request  # type: ignore[arg-type]

    # ---- leaving

    def Revoke(self) -> None:
        """All hear of it, this rank at once."""
        job, group = self.group.job, self.group
        for member in group.members:
            if group.revoked[member] == inf:
                group.revoked[member] = job.scheduler.now if member == self.me else job.later(member)
        group.revoked[self.me] = job.scheduler.now
        self._box.close()

    def shrink(self, deadline: float) -> "tuple[Mortal, list[int]]":
        """A communicator of all that live, and the places of those that are gone."""
        group, scheduler = self.group, self.group.job.scheduler
        group.job.called(self.me)
        group.leave(self.me)
        scheduler.at(scheduler.now + deadline, lambda: None if group.left else group.job.end_stopped())
        scheduler.limit(self.me, scheduler.now + 3 * deadline)
        while group.left is None or group.left[2][self.me] > scheduler.now:
            scheduler.park(self.me, 1.0, lambda: "MPI_Comm_shrink")
        scheduler.limit(self.me, inf)
        left, gone, _ = group.left
        return Mortal(left, left.members.index(self.me)), gone


class Outlasting(EnduringCommunicator):
    """The program's own, which only leaves in another way."""

    def without_lost(self, deadline: float) -> "tuple[EnduringCommunicator, list[int]]":
        for communicator in self._family.members:
            communicator.Revoke()
        plain: Any = self.plain
        for request in plain.group.job.under_way[plain.me]:
            request.spoil()
        whole, gone = plain.shrink(deadline)
        return Outlasting(whole, Family()), gone
