"""A team's gradient: its ranks share each minibatch of their leader, who alone takes part in an algorithm's exchange.

This is a level below any protocol. Above it the leader is one worker, whose `learner` answers for the whole team:

    leader    Share ──┐  θ ───┐            ┌── sum ──> gradient of the minibatch
    follower          └> order └> share of it ┘

A follower waits for orders: to compute its share, to come to a meeting of all ranks, to go. Where all ranks of each
team share memory, θ and the gradients stand there: messages only say when. What the team's ranks send each other is
counted apart (`Team.traffic`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mpitrain.flat import Array, block_slices
from mpitrain.models.model import Ready
from mpitrain.mpi.collectives import reduced
from mpitrain.mpi.communicator import Request
from mpitrain.mpi.team import Team
from mpitrain.protocols.messages import TO_FIRST, TO_TEAM, Attend, Gone, Over, Share, pack
from mpitrain.protocols.standby import await_order, dismissed
from mpitrain.sampling.queue import Work
from mpitrain.training.buckets import Buckets
from mpitrain.training.context import Session
from mpitrain.training.gradients import Learner, clip

BUCKET_MB = 4.0  # of one sum over the team


class TeamMember:
    """One rank's part in its team's gradients, computed by `learner`."""

    def __init__(self, learner: Learner, team: Team) -> None:
        self._learner, self.team, self._loss = learner, team, np.zeros(1)
        self._sums = learner.device.transport(team)

    def of(self, work: Work) -> Work:
        """This rank's share of a minibatch. One that has none takes a sample with weight 0, for the same buckets."""
        share = work.share(self.team.rank, self.team.size)
        return share if share.count else replace(share, start=work.start, count=1)

    def gradient(self, theta: Array, out: Array, work: Work, scale: float, on_ready: Ready | None = None) -> float:
        """Sum the shares of `scale` times the minibatch's mean gradient at the leader's `theta` into the leader's
        `out`. Returns, on the leader, the minibatch's mean loss."""
        team, share = self.team, work.share(self.team.rank, self.team.size)
        if team.rows is None:
            team.wait(self._sums.start_broadcast(theta, 0), "the leader's parameters")
        elif not team.leads:
            theta, out = team.rows[0], team.rows[team.rank]
        buckets = Buckets(BUCKET_MB, out, lambda part: self._start_sum(out[part]))
        weight = share.count / work.count
        loss = self._learner.scaled_gradient(theta, out, self.of(work), weight * scale, buckets.add, work)
        self._loss[0] = weight * loss
        small = self._start_reduce(self._loss)
        for request, part in buckets.drain():
            team.wait(request, "its share of a gradient")
            if team.rows is not None and team.leads:
                _add(out, team.rows[1:], part)
            if on_ready is not None and not self._learner.clip_norm:
                on_ready(part)
        team.wait(small, "its share of a gradient")
        if on_ready is not None and self._learner.clip_norm:
            clip(out, self._learner.clip_norm, scale)
            on_ready(slice(0, out.size))
        return float(self._loss[0])

    def _start_sum(self, array: Array) -> Request:
        """Start summing a part of the gradients; with shared memory, start a signal that they are there."""
        return self._start_reduce(array if self.team.rows is None else np.zeros(1, np.int8))

    def _start_reduce(self, array: Array) -> Request:
        return self._sums.start_reduce(0, array, array if self.team.leads else None)


def _add(out: Array, rows: Sequence[Array], part: slice) -> None:
    """Add a part of the followers' gradients to the leader's, in the order of `reduced`. Overwrites all rows."""
    for b in block_slices(part):
        reduced([out[b], *(row[b] for row in rows)], lambda one, other: np.add(one, other, out=one))


class Leading(Learner):
    """A leader's learner: its gradients are the team's."""

    def __init__(self, team: Team, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._part = TeamMember(self, team)
        self._coming: list[Work] = []

    def gradient(self, theta: Array, out: Array, work: Work, on_ready: Ready | None = None) -> float:
        scale, team = self.scale(work), self._part.team
        if work in self._coming:
            del self._coming[: self._coming.index(work) + 1]
        following = self._coming[0] if self._coming else None
        if team.rows is not None and team.followers:
            np.copyto(team.rows[0], theta)
        team.post(TO_TEAM.tag, pack(Share(work, following, scale)))
        return self._part.gradient(theta, out, work, scale, on_ready)

    def expect(self, works: Iterable[Work]) -> None:
        self._coming = list(works)
        super().expect(map(self._part.of, self._coming))


def order_meeting(session: Session) -> None:
    """On a team's leader: have its followers come to a meeting of all ranks."""
    if session.team is not None:
        session.team.post(TO_TEAM.tag, pack(Attend()))


def follow(session: Session, attend: Callable[[Session], object] = lambda session: None) -> None:
    """A follower's training: carry out the leader's orders until it is over. `attend` comes to a meeting of all ranks.

    A stop request to this rank is passed on to the leader.
    """
    team, transport, learner = session.team, session.transport, session.learner
    assert team is not None
    part, gradient = TeamMember(learner, team), np.empty_like(session.state.theta)
    while not isinstance(
        order := await_order(session, TO_TEAM, team.leader, "its leader's orders", yielding=transport.yielding),
        Over,
    ):
        if isinstance(order, Share):
            learner.expect(part.of(work) for work in (order.work, order.following) if work is not None)
            part.gradient(session.state.theta, gradient, order.work, order.scale)
        else:
            attend(session)
        transport.heartbeat()
    TO_FIRST.post(transport, team.leader, Gone())
    transport.flush()


def release(session: Session) -> None:
    """On a team's leader, at the end: let the followers go."""
    if session.team is not None:
        session.team.post(TO_TEAM.tag, pack(Over()))
        dismissed(session, session.team.followers)


def share_model(session: Session) -> None:
    """Give the followers the parameters that the leader's training has come to. Collective over the team, if any."""
    if session.team is not None:
        sums = session.device.transport(session.team)
        session.team.wait(sums.start_broadcast(session.state.theta, 0), "the final parameters")
