"""What a free-running worker hears from its master, filed as it comes: end, save, go on, and answers."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from mpitrain.errors import WireError
from mpitrain.protocols.messages import (
    TO_MASTER,
    TO_WORKER,
    Added,
    Finish,
    FromWorker,
    Leave,
    Piece,
    Place,
    Resume,
    Save,
)

if TYPE_CHECKING:
    from mpitrain.training.context import Session

Wanted = TypeVar("Wanted", Place, Piece)


class Orders:
    """A worker's line to the master.

    `stopping`: train no more; `over`: leave; `saving`: copy your piece of a checkpoint and wait; `saved_as`: the name
    of the last one; `unconfirmed`: additions to the centre that are not known to have arrived.
    """

    def __init__(self, session: "Session", master: int) -> None:
        self.session, self.transport, self.master = session, session.transport, master
        self.stopping, self.over = False, False
        self.saving, self.saved_as = False, 0
        self.unconfirmed = 0
        self._answers: list[Place | Piece] = []

    def tell(self, message: FromWorker) -> None:
        """Send a message."""
        TO_MASTER.tell(self.session, self.master, message)

    def look(self) -> bool:
        """File what has come; whether anything has."""
        seen = False
        while (arrived := TO_WORKER.poll(self.transport, self.master)) is not None:
            seen = True
            match arrived[1].message:
                case Finish():
                    self.stopping = True
                case Leave():
                    self.stopping = self.over = True
                case Save():
                    self.saving = True
                case Resume(name):
                    self.saving, self.saved_as = False, name
                case Added():
                    self.unconfirmed -= 1
                case Place() | Piece() as answer:
                    self._answers.append(answer)
        return seen

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """File messages until the condition holds. Raises Overdue naming `what`."""
        self.transport.until(condition, what, [self.master], self.look)

    def answer(self, wanted: type[Wanted], what: str) -> Wanted:
        """The master's next answer: to a claim, or on a piece of the centre."""
        self.until(lambda: bool(self._answers), what)
        answer = self._answers.pop(0)
        if not isinstance(answer, wanted):
            raise WireError(f"rank {self.master} sent {answer} where a {wanted.__name__} was due")
        return answer
