"""Round-robin order of workers: a token passes from one to the next, and the one that holds it has the turn."""

from mpitrain.mpi import Transport
from mpitrain.protocols.messages import TO_NEXT, Token, pack


class RoundRobin:
    """A worker's part in the order. `token`: None while another worker has the turn."""

    def __init__(self, transport: Transport, number: int, workers: list[int]) -> None:
        self.transport = transport
        self.token: Token | None = None
        self.stopping = False  # whether a worker that had it before was asked to stop
        self._next = workers[(number + 1) % len(workers)]

    def has_turn(self) -> bool:
        """Whether this worker has the token, or it has just arrived."""
        if self.token is None and (arrived := TO_NEXT.poll(self.transport)) is not None:
            self.token = arrived[1].message
            self.stopping |= arrived[1].stopping
        return self.token is not None

    def end_turn(self, token: Token, stopping: bool) -> None:
        """Pass the token on; `stopping` tells the next worker to stop, too."""
        self.token = None
        self.transport.post(self._next, TO_NEXT.tag, pack(token, stopping))
