"""The one collective of free-running peers: all messages applied, replicas compared, perhaps a checkpoint or the end.

A rank comes when it has no work left. If one calls, to stop or to save, all come as soon as their minibatch is done.
"""

from typing import TypeVar

import msgspec

from mpitrain.errors import TrainingFailed, named
from mpitrain.protocols.messages import Meeting, PeerReport, Reason
from mpitrain.protocols.peers.peer import Peer
from mpitrain.protocols.peers.replica import odd_ones
from mpitrain.protocols.peers.rounds import END, PeerRound
from mpitrain.protocols.standby import hear
from mpitrain.protocols.team import order_meeting
from mpitrain.training.context import Session
from mpitrain.training.loop import Loop

WHAT = "the meeting of all ranks"

Part = TypeVar("Part", bound=PeerRound)


class Status(msgspec.Struct, frozen=True):
    """How far a rank has come at a meeting, all messages applied: its next round (`place`), where the last round ends
    in which it has trained (`reached`), a hash of its replica, and why it came."""

    reason: Reason
    place: int
    reached: int
    replica: str
    report: PeerReport


def attend(session: Session) -> None:
    """A follower's part in a meeting to which its leader goes."""
    transport = session.transport
    transport.barrier(WHAT)
    statuses = _gather(session, None)
    if _to_save(statuses):
        session.save_together()


def _gather(session: Session, mine: Status | None) -> list[Status]:
    """The members' statuses; `mine` is None on a follower, which is no member."""
    text = "" if mine is None else msgspec.json.encode(mine).decode()
    texts = session.transport.gather_texts(text, WHAT)
    return [msgspec.json.decode(texts[member], type=Status) for member in session.members]


def _over(statuses: list[Status]) -> bool:
    return any(s.reason == "stop" for s in statuses) or all(s.place == END for s in statuses)


def _to_save(statuses: list[Status]) -> bool:
    return any(s.reason == "save" for s in statuses) and not _over(statuses)


class Meetings(Loop[Part]):
    """A rank's loop, and its meetings with its peers."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer.session)
        self.peer, self.exchange = peer, peer.exchange
        self.next = self.following(peer.number)  # this rank's next turn or round
        self.place = 0  # the first round of which this rank has not done its part
        self.reached = 0  # where the last round ends in which it has trained
        self.turns = 0  # how many this rank has done: minibatches, or groups of `tau`; in round-robin order, rounds

    def attend(self) -> None:
        self.peer.attend()

    def following(self, number: int, before: Part | None = None) -> Part | None:
        """What the rank with this number does after `before`, or first; None when there is nothing."""
        raise NotImplementedError

    def after(self, number: int, turns: int) -> tuple[int, int]:
        """`place` and `reached` of the rank with this number when it has done `turns` turns."""
        work, reached = self.following(number), 0
        for _ in range(turns):
            if work is not None:
                reached, work = work.after, self.following(number, work)
        return END if work is None else work.place, reached

    def reason(self, done: bool = False) -> Reason | None:
        """Why this rank should come to a meeting now, if it should."""
        hear(self.session)
        if self.session.stop.flag:
            return "stop"
        if self.peer.save_wanted:
            return "save"
        if self.exchange.requested >= self.exchange.meeting:
            return "called"
        return "done" if done else None

    def meet(self, reason: Reason, place: int) -> bool:
        """Meet all ranks; this rank's next round is at `place`. Returns whether the training is over.

        Raises TrainingFailed naming ranks whose replicas differ; at the end of the training this is only a warning.
        """
        peer, began = self.peer, self.session.clock()
        self._drain(reason)
        peer.measure()
        self.exchange.replica.check()
        status = Status(reason, place, self.reached, self.exchange.replica.hash(), peer.report())
        statuses = _gather(self.session, status)
        over = _over(statuses)
        self._compare([s.replica for s in statuses], over)
        reached = max(s.reached for s in statuses)
        peer.state.queue = peer.rounds.remaining([s.place for s in statuses], reached)
        peer.count_updates()
        if peer.number == 0:
            for member, status in zip(peer.members, statuses, strict=True):
                self.exchange.count(member, status.report)
        if _to_save(statuses):
            peer.save_wanted = False
            self.session.monitor.checkpoint(self.session.save_together, since=began)
        return over

    # ---- the nonblocking consensus

    def _drain(self, reason: Reason) -> None:
        """Wait until own messages are taken, then at a barrier, applying messages meanwhile: none stays in transit."""
        exchange, coming = self.exchange, "the end of its minibatch"
        exchange.tell(exchange.peers, Meeting(exchange.meeting, reason))
        exchange.until(exchange.all_taken, coming, self._missing)
        order_meeting(self.session)
        exchange.settle(coming)
        exchange.meeting += 1

    def _missing(self) -> list[int]:
        exchange = self.exchange
        missing = [peer for peer in exchange.peers if exchange.there.get(peer, -1) < exchange.meeting]
        return missing or exchange.peers

    def _compare(self, hashes: list[str], over: bool) -> None:
        odd = [self.peer.members[number] for number in odd_ones(hashes)]
        line = f"the replica of {named(odd)} differs from the others"
        if odd and not over:
            raise TrainingFailed(line)
        if odd and self.peer.number == 0:
            self.session.journal.warn(line)
