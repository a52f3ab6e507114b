"""The two orders in which peers train: each at its own speed, or round by round."""

from mpitrain.protocols.peers.peer import Peer
from mpitrain.protocols.peers.rounds import END, Round, Turn


def asynchronous(peer: Peer) -> None:
    """Everybody at their own speed, applying what has come before each gradient."""
    turn, over = peer.rounds.turn(peer.number, 0), False
    while not over:
        peer.exchange.receive()
        peer.attend()
        reason = peer.meetings.reason(done=turn is None)
        if reason is not None:  # nobody waits for more than the minibatch that this rank was in when it was called
            over = peer.meetings.meet(reason, END if turn is None else turn.place)
        elif turn is not None and _may_start(peer, turn):
            following = peer.rounds.turn(peer.number, turn.after, turn.since)
            _train(peer, turn, following)
            turn = following
        elif turn is not None:
            _await_stage(peer, turn)


def synchronous(peer: Peer) -> None:
    """Everybody's messages of a round are applied, in the order of the ranks, before the next gradient."""
    now, over = peer.rounds.at(0), False
    while now is not None and not over:
        wish = _round(peer, now)
        now = peer.rounds.at(now.after)
        peer.attend()
        if wish and now is not None:
            over = peer.meetings.meet(peer.meetings.reason() or "called", now.place)
    if not over:
        peer.meetings.meet("done", END)


def _may_start(peer: Peer, turn: Turn) -> bool:
    return peer.number == 0 or turn.since <= peer.exchange.reached


def _await_stage(peer: Peer, turn: Turn) -> None:
    """Apply what comes until the master has reached the stage in which this rank trains."""
    peer.exchange.until(
        lambda: _may_start(peer, turn) or peer.meetings.reason() is not None,
        "the beginning of a later stage",
        lambda: [peer.members[0]],
    )


def _train(peer: Peer, turn: Turn, following: Turn | None) -> None:
    """A minibatch. With a full window it only adds to the residual, as long as patience lasts."""
    peer.enter_stage(turn)
    peer.session.learner.expect([turn.work] if following is None else [turn.work, following.work])
    outbox = peer.exchange.outbox
    if outbox.awaited() and peer.patience == 0:
        await_window(peer)
    emit = not outbox.awaited()
    peer.patience = peer.options.patience if emit else peer.patience - 1
    entries = peer.compute(turn.work, turn.settings, emit)
    if emit:
        peer.send(entries)


def _round(peer: Peer, now: Round) -> bool:
    """A minibatch of every rank that has one; whether somebody wishes to meet. Those without send nothing but that."""
    exchange, entries, has_work = peer.exchange, peer.emission.nothing, peer.number < len(now.works)
    if has_work:
        entries = peer.compute(now.works[peer.number], now.settings[peer.number], emit=True)
    exchange.wish = peer.meetings.reason() is not None
    await_window(peer)
    peer.send(entries, exchange.wish, has_work)
    for member in exchange.peers:
        exchange.until(
            lambda: exchange.take_from(member),  # noqa: B023
            "its message of this round",
            lambda: [member],  # noqa: B023
            any_sign=False,
        )
    return exchange.wish


def await_window(peer: Peer) -> None:
    """Receive until the next message may be sent. Raises Overdue naming the peers that do not take theirs."""
    outbox = peer.exchange.outbox
    peer.exchange.until(lambda: not outbox.awaited(), "it to take messages", outbox.awaited, any_sign=False)
