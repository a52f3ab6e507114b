"""The tags of all messages between two ranks. protocols/messages.py says what those with a struct of their own are."""

from enum import IntEnum


class Tag(IntEnum):
    """What a message belongs to. Two conversations that can go on at the same time never share one."""

    VECTOR = 3  # Θ, x̃, a gradient or a move of the centre: announced by a message under another tag
    TO_MASTER = 4  # of its workers
    TO_WORKER = 5
    TO_NEXT = 6  # from worker to worker
    WEIGHTS = 11  # a rank's part of a network that is spread over ranks
    ROWS = 21  # predictions of a trained network
    TRACE = 22  # a rank's part of a trace
    DELTA = 31  # a peer's sparse message
    TO_PEER = 32
    HEARTBEAT = 40  # a byte
    TO_FIRST = 51  # from ranks that have no part in what goes on
    TO_IDLE = 52
    TO_TEAM = 53  # from a team's leader
    COLLECTIVES = 1024  # and above: collectives of vectors in GPU memory
