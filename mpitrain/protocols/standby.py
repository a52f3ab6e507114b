"""Ranks without work, in a pre-training or because the algorithm has none for them.

They wait for the end, however far it is, as long as the others give heartbeats, and pass on a stop request.
"""

from collections.abc import Sequence

from mpitrain.protocols.messages import TO_FIRST, TO_IDLE, Channel, Gone, Over, StopRequest, T
from mpitrain.training.context import Session

POLL_INTERVAL = 0.05  # seconds


def idle_ranks(session: Session) -> list[int]:
    """The ranks that take no part in the training."""
    return [rank for rank in session.transport.members if not session.takes_part(rank)]


def stand_by(session: Session, first: int, what: str) -> Over:
    """Wait until the rank `first` says that it is over; returns its message."""
    news = await_order(session, TO_IDLE, first, what, POLL_INTERVAL)
    TO_FIRST.post(session.transport, first, Gone())
    return news


def await_order(
    session: Session, channel: Channel[T], first: int, what: str, nap: float | None = None, yielding: float = 0.0
) -> T:
    """Wait for the next message of rank `first`, and pass a stop request on to it. `nap`, `yielding`: see
    `Transport.until`."""
    transport, told, news = session.transport, False, list[T]()

    def came() -> bool:
        nonlocal told
        if session.stop.flag and not told:
            TO_FIRST.post(transport, first, StopRequest())
            told = True
        if (arrived := channel.poll(transport, first)) is not None:
            news.append(arrived[1].message)
        return bool(news)

    transport.until(came, what, [first], nap=nap, yielding=yielding)
    return news[0]


def dismiss(session: Session, idle: Sequence[int], news: Over) -> None:
    """On the first rank: let the idle ranks go."""
    for rank in idle:
        TO_IDLE.post(session.transport, rank, news)
    dismissed(session, idle)


def dismissed(session: Session, ranks: Sequence[int]) -> None:
    """Wait until these have heard that it is over."""
    for rank in ranks:  # no stop request that came too late stays behind
        while TO_FIRST.receive(session.transport, rank, "an idle rank to go on").message != Gone():
            pass
    session.transport.flush()


def hear(session: Session) -> None:
    """Between two steps of the master or a team's leader: take a stop request that a waiting rank has passed on."""
    if len(session.members) < session.transport.size and TO_FIRST.poll(session.transport) is not None:
        session.stop.flag = True
