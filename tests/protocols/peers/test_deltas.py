"""A peer's mail, with a transport that is told what comes when."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from mpitrain.protocols.peers.deltas import Deltas

MESSAGE = np.arange(7, dtype=np.uint8)


class Slow:
    """A request that completes at the third look."""

    looks = 0

    def Test(self) -> bool:
        self.looks += 1
        return self.looks > 2


class LateTransport:
    """Everybody comes to the barrier at once; a message has been matched, and its last bytes come later."""

    rank = 0

    def __init__(self) -> None:
        self.waiting = [(1, Slow())]
        self.comm = SimpleNamespace(Ibarrier=lambda: SimpleNamespace(Test=lambda: True))

    def match(self, tag: int, allot: Any) -> Any:
        if not self.waiting:
            return None
        sender, request = self.waiting.pop()
        memory = allot(sender, MESSAGE.size)[: MESSAGE.size]
        memory[:] = MESSAGE
        return sender, request, memory

    def until(self, happened: Any, what: str, whom: Any, attend: Any) -> None:
        for _ in range(100):
            if happened():
                return
            attend()
        raise AssertionError(what)


def test_a_meeting_waits_for_the_last_bytes_of_a_message() -> None:
    """Whose sender is told that it is taken when it is matched, and comes to the barrier."""
    read: list[list[int]] = []
    replica: Any = SimpleNamespace(
        sums={0: 0, 1: 0},
        wire=SimpleNamespace(capacity=64),
        read=lambda message, sender: bool(read.append([sender, *message.tolist()])),  # it asks for no meeting
    )
    deltas = Deltas(LateTransport(), replica, window=1, patience=0, at_once=True)  # type: ignore[arg-type]
    deltas.settle("the end of its minibatch")
    assert read == [[1, *MESSAGE.tolist()]]
