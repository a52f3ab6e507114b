"""A communicator of simulated ranks, with the calls of `mpitrain.mpi.communicator`."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

import numpy as np

from mpitrain.flat import Array
from mpitrain.mpi.launcher import MPI, BufSpec, BufSpecB, BufSpecV, InPlace
from mpitrain.simulation import collectives, rounds
from mpitrain.simulation.collectives import Collective, CollectivePart, Course
from mpitrain.simulation.messages import (
    Mailbox,
    SentMessage,
    SimulatedMatched,
    SimulatedRequest,
    Wires,
    counted,
    flat,
    given,
    raw,
)

PATIENCE = 60.0  # seconds of a wait within a call, after which it begins anew


class Group:
    """What the ranks of one communicator share. `members` are their numbers in the job."""

    def __init__(self, wires: Wires, members: Sequence[int]) -> None:
        self.wires, self.members = wires, members
        self._nodes = tuple(wires.nodes[member] for member in members)
        self.boxes = [Mailbox(partial(wires.scheduler.wake, member)) for member in members]
        self.collectives: dict[int, Collective] = {}
        self.arrivals: dict[tuple[int, int], float] = {}  # of the last message between two ranks
        self._made: dict[tuple[int, object], Group] = {}
        self.memories: dict[int, dict[int, Array]] = {}  # of each window, by its number: that of every rank
        self.looking: set[int] = set()  # ranks that have looked at a window since a window last changed

    def join(self, rank: int, number: int, called: Collective, part: CollectivePart) -> None:
        """A rank calls its collective `number`. Raises RuntimeError if others have called another one."""
        collective = self.collectives.setdefault(number, called)
        if called.name != collective.name:
            raise RuntimeError(f"rank {rank} calls {called.name} where others have called {collective.name}")
        collective.parts[rank] = part
        if len(collective.parts) == len(self.members):
            del self.collectives[number]
            Course(self.wires, self.members, self._nodes, collective)

    def made(self, number: int, key: object, members: Sequence[int]) -> "Group":
        """The group that the ranks' call `number` makes of the `members`, which have the same key."""
        if (number, key) not in self._made:
            self._made[number, key] = Group(self.wires, members)
        return self._made[number, key]


class SimulatedCommunicator:
    """One rank's handle. Messages between two ranks arrive in the order in which they were sent."""

    def __init__(self, group: Group, rank: int) -> None:
        self.group, self.rank, self.size = group, rank, len(group.members)
        self._wires, self._box = group.wires, group.boxes[rank]
        self._numbers = count()

    # ---- between two ranks

    def Isend(self, buffer: BufSpec, to: int, tag: int, /) -> SimulatedRequest:
        request = SimulatedRequest(self._box.wake)
        self._send(SentMessage(self.rank, tag, raw(buffer)), to, request.complete)
        return request

    def Issend(self, buffer: BufSpec, to: int, tag: int, /) -> SimulatedRequest:
        request = SimulatedRequest(self._box.wake)

        def taken() -> None:
            self._wires.send(0, self.group.members[to], self.group.members[self.rank], request.complete)

        self._send(SentMessage(self.rank, tag, raw(buffer), taken), to, lambda: None)
        return request

    def Irecv(self, buffer: BufSpec, source: int, tag: int, /) -> SimulatedRequest:
        return self._box.post(buffer, source, tag)

    def Iprobe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, /) -> bool:
        return self._box.find(source, tag) is not None

    def Improbe(self, source: int, tag: int, status: MPI.Status, /) -> SimulatedMatched | None:
        return self._box.match(source, tag, status)

    def _send(self, message: SentMessage, to: int, arrived: Callable[[], None]) -> None:
        group, pair = self.group, (self.rank, to)

        def arrive() -> None:
            group.boxes[to].arrive(message)
            arrived()

        before = group.arrivals.get(pair, 0.0)
        source, target = group.members[self.rank], group.members[to]
        group.arrivals[pair] = self._wires.send(message.payload.size, source, target, arrive, before)

    # ---- of all ranks

    def Ibarrier(self) -> SimulatedRequest:
        return self._join(Collective("Ibarrier", collectives.nothing, rounds.barrier), None, [])

    def Ibcast(self, buffer: BufSpec, root: int, /) -> SimulatedRequest:
        carry_out = partial(collectives.broadcast, root=root)
        return self._join(Collective("Ibcast", carry_out, rounds.broadcast, (root,)), None, [raw(buffer)])

    def Ireduce(
        self, send: BufSpec | InPlace, receive: BufSpec | None, operation: MPI.Op, root: int, /
    ) -> SimulatedRequest:
        take = [flat(receive)] if self.rank == root and receive is not None else []
        carry_out = partial(collectives.combine, operation=operation)
        return self._join(Collective("Ireduce", carry_out, rounds.reduce, (root,)), given(send), take)

    def Iallreduce(self, send: BufSpec | InPlace, receive: BufSpec, operation: MPI.Op = MPI.SUM, /) -> SimulatedRequest:
        carry_out = partial(collectives.combine, operation=operation)
        return self._join(Collective("Iallreduce", carry_out, rounds.allreduce), given(send), [flat(receive)])

    def Ireduce_scatter(self, send: BufSpec, receive: BufSpec, counts: Sequence[int], /) -> SimulatedRequest:
        carry_out = partial(collectives.scatter, counts=counts)
        called = Collective("Ireduce_scatter", carry_out, rounds.reduce_scatter, (tuple(counts),))
        return self._join(called, flat(send), [flat(receive)])

    def Iallgather(self, send: BufSpec, receive: BufSpecB, /) -> SimulatedRequest:
        return self._gather("Iallgather", flat(send), flat(receive), [flat(send).size] * self.size)

    def Iallgatherv(self, send: BufSpec | InPlace, receive: BufSpecV, /) -> SimulatedRequest:
        return self._gather("Iallgatherv", given(send), *counted(receive))

    def _gather(self, name: str, own: Array | None, whole: Array, counts: Sequence[int]) -> SimulatedRequest:
        carry_out = partial(collectives.gather, counts=counts)
        return self._join(Collective(name, carry_out, rounds.gather, (tuple(counts),)), own, [whole])

    def Split(self, color: int, /) -> "SimulatedCommunicator":
        """The ranks of this rank's colour, which all ranks have to tell first."""
        colours = np.zeros(self.size, np.int64)
        self.finish(self.Iallgather(np.array([color]), colours), "MPI_Comm_split")
        return self._part([int(colour) for colour in colours])

    def Split_type(self, kind: int, /) -> "SimulatedCommunicator":
        """The ranks of this rank's node. Nodes are known, so no rank waits."""
        return self._part([self._wires.nodes[member] for member in self.group.members])

    def _part(self, colours: Sequence[int]) -> "SimulatedCommunicator":
        """The communicator of the ranks with this rank's colour."""
        own = colours[self.rank]
        places = [place for place, colour in enumerate(colours) if colour == own]
        group = self.group.made(next(self._numbers), own, [self.group.members[place] for place in places])
        return SimulatedCommunicator(group, places.index(self.rank))

    def Idup(self) -> "tuple[SimulatedCommunicator, SimulatedRequest]":
        number = next(self._numbers)
        duplicate = SimulatedCommunicator(self.group.made(number, None, self.group.members), self.rank)
        called = Collective("Idup", collectives.nothing, rounds.barrier)
        return duplicate, self._join(called, None, [], number)

    def finish(self, request: SimulatedRequest, what: str) -> None:
        """Wait within a call until a request has completed."""
        while not request.Test():
            self._wires.scheduler.park(self.group.members[self.rank], PATIENCE, lambda: what)

    # ---- for windows

    def shared(self) -> dict[int, Array]:
        """A window's memories, by rank. Collective."""
        return self.group.memories.setdefault(next(self._numbers), {})

    def later(self, nbytes: int, rank: int, effect: Callable[[], object], fetches: bool = False) -> SimulatedRequest:
        """A request that completes with its effect when this many bytes are with another rank, or, if this one
        `fetches` them, have come from there."""
        request, members = SimulatedRequest(self._box.wake), self.group.members
        source, target = (rank, self.rank) if fetches else (self.rank, rank)

        def end() -> None:
            effect()
            request.complete()

        self._wires.send(nbytes, members[source], members[target], end)
        return request

    def look(self) -> None:
        """Note that this rank looks at windows, and may have changed them: wake the ranks that have looked before."""
        for rank in sorted(self.group.looking - {self.rank}):
            self.group.boxes[rank].wake()
        self.group.looking = {self.rank}

    def _join(
        self, called: Collective, give: Array | None, take: Sequence[Array], number: int | None = None
    ) -> SimulatedRequest:
        request = SimulatedRequest(self._box.wake)
        number = next(self._numbers) if number is None else number
        self.group.join(self.rank, number, called, CollectivePart(give, take, request))
        return request
