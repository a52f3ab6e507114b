"""Ranks for which an algorithm has no work: they wait for the end, however far it is, as long as the others give
heartbeats, and pass on a stop request."""

from mpitrain.training.context import Session

TO_MASTER, TO_IDLE = 51, 52  # message tags
OVER = b"over"
NAP = 0.05  # seconds between two looks


def idle_ranks(session: Session) -> list[int]:
    """Those that take no part."""
    return [rank for rank in range(session.transport.size) if rank not in session.members]


def stand_by(session: Session) -> None:
    """Wait until the members have finished."""
    transport, master, told = session.transport, session.members[0], False
    while transport.poll(TO_IDLE, master) is None:
        if session.stop.flag and not told:
            transport.post(master, TO_MASTER, b"stop")
            told = True
        transport.heartbeat(working=False)
        transport.sleep(NAP)
    transport.post(master, TO_MASTER, OVER)


def dismiss(session: Session) -> None:
    """The master's: let the idle ranks go."""
    for rank in idle_ranks(session):
        session.transport.post(rank, TO_IDLE, OVER)
    for rank in idle_ranks(session):  # no wish to stop that came too late stays behind
        while session.transport.receive(rank, TO_MASTER, "the end of an idle rank") != OVER:
            pass
    session.transport.flush()


def hear(session: Session) -> None:
    """The master's, between two steps: take an idle rank's wish to stop for its own."""
    if len(session.members) < session.transport.size and session.transport.poll(TO_MASTER) is not None:
        session.stop.flag = True
