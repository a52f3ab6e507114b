"""The two orders in which peers train: each at its own pace, or round by round."""

from mpitrain.protocols.peers.meeting import Meetings
from mpitrain.protocols.peers.rounds import END, PeerRound, Turn


class Asynchronous(Meetings[Turn]):
    """Every rank at its own pace, applying what has come before each gradient."""

    def following(self, number: int, before: Turn | None = None) -> Turn | None:
        return self.peer.rounds.turn(number, before.after if before else 0, before.since if before else 0)

    def next_work(self) -> Turn | None:
        """This rank's next turn, once its stage has come; until then, meetings."""
        while not self.stopping:
            self.exchange.receive()
            reason = self.reason(done=self.next is None)
            if reason is not None:  # at the latest after the turn in which this rank was called
                self.stopping = self.meet(reason, END if self.next is None else self.next.place)
                if self.stopping:  # no rank takes reports any more
                    return None
            elif self.next is None or self._may_start(self.next):
                return self.next
            else:
                self._await_stage(self.next)
            self.attend()
        return None

    def advance(self, work: Turn) -> None:
        """Take a turn. With a full window it only adds to the residual, as long as patience lasts."""
        peer, self.place = self.peer, work.place
        self.next = self.following(peer.number, work)
        peer.enter_stage(work)
        turns = [each for each in (work, self.next) if each is not None]
        self.session.learner.expect([minibatch for each in turns for minibatch, _ in each.steps])
        emit = self.exchange.may_send()
        entries = peer.compute(work.steps, work.workers, emit)
        self.turns += 1
        peer.send(entries, self.turns, work.steps, emit)
        self.place, self.reached = END if self.next is None else self.next.place, work.after

    def _may_start(self, turn: Turn) -> bool:
        return self.peer.number == 0 or turn.since <= self.exchange.reached

    def _await_stage(self, turn: Turn) -> None:
        """Apply what comes until the master has reached the stage in which this rank trains."""
        self.exchange.until(
            lambda: self._may_start(turn) or self.reason() is not None,
            "the beginning of a later stage",
            [self.exchange.master],
        )


class Synchronous(Meetings[PeerRound]):
    """All messages of a round are applied, in the order of the ranks, before the next gradient."""

    def following(self, number: int, before: PeerRound | None = None) -> PeerRound | None:
        return self.peer.rounds.at(before.after if before else 0)

    def train(self) -> None:
        super().train()
        if not self.stopping:
            self.meet("done", END)

    def next_work(self) -> PeerRound | None:
        return self.next

    def advance(self, work: PeerRound) -> None:
        """Take this rank's turn of a round, if it has one, and apply the messages of all ranks."""
        peer, exchange, steps = self.peer, self.exchange, work.of(self.peer.number)
        self.place = work.place
        entries = peer.compute(steps, work.workers, emit=True) if steps else peer.compressor.nothing
        exchange.round_requests = self.reason() is not None
        exchange.await_window()
        self.turns += 1
        peer.send(entries, self.turns, steps, calls=exchange.round_requests)
        self.place = self.reached = work.after
        exchange.take_round()
        self.next = self.following(peer.number, work)

    def attend(self) -> None:
        super().attend()
        if self.exchange.round_requests and self.next is not None:
            self.stopping = self.meet(self.reason() or "called", self.next.place)
