"""Ranks for which an algorithm has no work: they wait for the end, however far it is, as long as the others give
heartbeats, and pass on a stop request."""

from mpitrain.protocols.messages import TO_FIRST, TO_IDLE, Gone, Over, StopRequest
from mpitrain.training.context import Session

NAP = 0.05  # seconds between two looks


def idle_ranks(session: Session) -> list[int]:
    """Those that take no part."""
    return [rank for rank in range(session.transport.size) if rank not in session.members]


def stand_by(session: Session) -> None:
    """Wait until the members have finished."""
    transport, master, told = session.transport, session.members[0], False
    while TO_IDLE.poll(transport, master) is None:
        if session.stop.flag and not told:
            TO_FIRST.post(transport, master, StopRequest())
            told = True
        transport.heartbeat(working=False)
        transport.sleep(NAP)
    TO_FIRST.post(transport, master, Gone())


def dismiss(session: Session) -> None:
    """The master's: let the idle ranks go."""
    for rank in idle_ranks(session):
        TO_IDLE.post(session.transport, rank, Over())
    for rank in idle_ranks(session):  # no wish to stop that came too late stays behind
        while TO_FIRST.receive(session.transport, rank, "the end of an idle rank").message != Gone():
            pass
    session.transport.flush()


def hear(session: Session) -> None:
    """The master's, between two steps: take an idle rank's wish to stop for its own."""
    if len(session.members) < session.transport.size and TO_FIRST.poll(session.transport) is not None:
        session.stop.flag = True
