"""The two orders in which peers train: each at its own pace, or round by round."""

from mpitrain.protocols.peers.meeting import Meetings
from mpitrain.protocols.peers.peer import Peer
from mpitrain.protocols.peers.rounds import END, PeerRound, Turn
from mpitrain.training.loop import Loop


class Asynchronous(Loop[Turn]):
    """Every rank at its own pace, applying what has come before each gradient."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer.session)
        self.peer, self.meetings, self.turn = peer, Meetings(peer), peer.rounds.turn(peer.number, 0)

    def next_work(self) -> Turn | None:
        """This rank's next turn, once its stage has come; until then, meetings."""
        peer = self.peer
        while not self.stopping:
            peer.exchange.receive()
            reason = self.meetings.reason(done=self.turn is None)
            if reason is not None:  # nobody waits for more than the turn that this rank was in when it was called
                self.stopping = self.meetings.meet(reason, END if self.turn is None else self.turn.place)
                if self.stopping:  # nobody takes a report any more
                    return None
            elif self.turn is None or _may_start(peer, self.turn):
                return self.turn
            else:
                _await_stage(peer, self.meetings, self.turn)
            self.attend()
        return None

    def advance(self, work: Turn) -> None:
        self.turn = self.peer.rounds.turn(self.peer.number, work.after, work.since)
        _train(self.peer, work, self.turn)

    def attend(self) -> None:
        self.peer.attend()


class Synchronous(Loop[PeerRound]):
    """All messages of a round are applied, in the order of the ranks, before the next gradient."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer.session)
        self.peer, self.meetings, self.now = peer, Meetings(peer), peer.rounds.at(0)
        self._wish = False

    def train(self) -> None:
        super().train()
        if not self.stopping:
            self.meetings.meet("done", END)

    def next_work(self) -> PeerRound | None:
        return self.now

    def advance(self, work: PeerRound) -> None:
        self._wish = _round(self.peer, self.meetings, work)
        self.now = self.peer.rounds.at(work.after)

    def attend(self) -> None:
        self.peer.attend()
        if self._wish and self.now is not None:
            self.stopping = self.meetings.meet(self.meetings.reason() or "called", self.now.place)


def _may_start(peer: Peer, turn: Turn) -> bool:
    return peer.number == 0 or turn.since <= peer.exchange.reached


def _await_stage(peer: Peer, meetings: Meetings, turn: Turn) -> None:
    """Apply what comes until the master has reached the stage in which this rank trains."""
    peer.exchange.until(
        lambda: _may_start(peer, turn) or meetings.reason() is not None,
        "the beginning of a later stage",
        lambda: [peer.members[0]],
    )


def _train(peer: Peer, turn: Turn, following: Turn | None) -> None:
    """A turn. With a full window it only adds to the residual, as long as patience lasts."""
    peer.enter_stage(turn)
    peer.session.learner.expect([work for each in (turn, following) if each is not None for work, _ in each.steps])
    emit = peer.exchange.may_send()
    entries = peer.compute(turn.steps, turn.workers, emit)
    if emit:
        peer.send(entries)


def _round(peer: Peer, meetings: Meetings, now: PeerRound) -> bool:
    """A turn of every rank that has one; the others send nothing. Whether somebody called for a meeting."""
    exchange, entries, steps = peer.exchange, peer.compressor.nothing, now.of(peer.number)
    if steps:
        entries = peer.compute(steps, now.workers, emit=True)
    exchange.round_requests = meetings.reason() is not None
    exchange.await_window()
    peer.send(entries, exchange.round_requests, of_work=bool(steps))
    exchange.take_round()
    return exchange.round_requests
