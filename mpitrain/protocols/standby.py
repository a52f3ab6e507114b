"""Ranks without work, in a pre-training or because the algorithm has none for them.

They wait for the end, however far it is, as long as the others give heartbeats, and pass on a stop request.
"""

from collections.abc import Sequence

from mpitrain.protocols.messages import TO_FIRST, TO_IDLE, Gone, Over, StopRequest
from mpitrain.training.context import Session

NAP = 0.05  # seconds between two looks


def idle_ranks(session: Session) -> list[int]:
    """Those that take no part in the training."""
    return [rank for rank in session.transport.members if rank not in session.members]


def stand_by(session: Session, first: int, what: str) -> Over:
    """Wait until the rank `first` says that it is over; what it says."""
    transport, told, news = session.transport, False, list[Over]()

    def over() -> bool:
        nonlocal told
        if session.stop.flag and not told:
            TO_FIRST.post(transport, first, StopRequest())
            told = True
        if (arrived := TO_IDLE.poll(transport, first)) is not None:
            news.append(arrived[1].message)
        return bool(news)

    transport.until(over, what, [first], nap=NAP)
    TO_FIRST.post(transport, first, Gone())
    return news[0]


def dismiss(session: Session, idle: Sequence[int], news: Over) -> None:
    """The first rank's: let the idle ranks go."""
    for rank in idle:
        TO_IDLE.post(session.transport, rank, news)
    for rank in idle:  # no stop request that came too late stays behind
        while TO_FIRST.receive(session.transport, rank, "an idle rank to go on").message != Gone():
            pass
    session.transport.flush()


def hear(session: Session) -> None:
    """The master's, between two steps: take an idle rank's stop request for its own."""
    if len(session.members) < session.transport.size and TO_FIRST.poll(session.transport) is not None:
        session.stop.flag = True
