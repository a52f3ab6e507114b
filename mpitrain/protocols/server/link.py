"""A worker's line to its master: what it hears is filed as it comes, and vectors that come by message are checked."""

from collections.abc import Callable
from typing import Any, TypeVar

from mpitrain.errors import WireError
from mpitrain.flat import Array
from mpitrain.mpi.tags import Tag
from mpitrain.protocols.messages import (
    TO_MASTER,
    TO_WORKER,
    Added,
    Assignment,
    Done,
    Falls,
    Finish,
    FromWorker,
    Given,
    Gradient,
    Grant,
    Leave,
    Move,
    PeriodLosses,
    Piece,
    Place,
    Report,
    Resume,
    Save,
    StopRequest,
)
from mpitrain.training.context import Session

Wanted = TypeVar("Wanted", Assignment, Place, Piece)


class Line:
    """What a worker was told, and how it tells what it has done.

    `stopping`: train no more; `over`: leave; `granted`: hand your gradient over; `saving`: copy your piece of a
    checkpoint and wait; `saved_as`: the name of the last one; `unconfirmed`: additions to the centre that are not known
    to have arrived; `unheard`: losses to which the common rate has not been heard.
    """

    def __init__(self, session: Session, master: int) -> None:
        self.session, self.transport, self.master = session, session.transport, master
        self.stopping = self.over = self.granted = False
        self.saving, self.saved_as = False, 0
        self.unconfirmed = self.unheard = 0
        self._answers: list[Assignment | Place | Piece] = []
        self._told = False  # of this rank's stop request, or that no more will come from it

    def tell(self, message: FromWorker) -> None:
        """Send a message."""
        self._told |= self.session.stop.flag or isinstance(message, Done)
        self.unheard += isinstance(message, PeriodLosses)
        if isinstance(message, Gradient | Report) and (amounts := self.session.figures.take()):
            TO_MASTER.tell(self.session, self.master, Given(amounts))
        TO_MASTER.tell(self.session, self.master, message)

    def look(self) -> bool:
        """File what has come, and pass a stop request on; whether anything has come."""
        if self.session.stop.flag and not self._told:
            self.tell(StopRequest())
        seen = False
        while (arrived := TO_WORKER.poll(self.transport, self.master)) is not None:
            seen = True
            match arrived[1].message:
                case Finish():
                    self.stopping = True
                case Leave():
                    self.stopping = self.over = True
                case Grant():
                    self.granted = True
                case Save():
                    self.saving = True
                case Resume(name):
                    self.saving, self.saved_as = False, name
                case Added():
                    self.unconfirmed -= 1
                case Falls(number):
                    self.unheard -= 1
                    self.session.state.rate.hear(number)
                case answer:
                    self._answers.append(answer)
        return seen

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """File messages until the condition holds. Raises Overdue naming `what`."""
        self.transport.until(condition, what, [self.master], self.look)

    def answer(self, wanted: type[Wanted], what: str) -> Wanted:
        """The master's next answer: to a claim, or a piece of the centre."""
        self.until(lambda: bool(self._answers), what)
        answer = self._answers.pop(0)
        if not isinstance(answer, wanted):
            raise WireError(f"rank {self.master} sent {answer} where {wanted.__name__} was due")
        return answer


def receive(
    transport: Any, checksum: Callable[[Array], int], sender: int, told: Gradient | Move | Piece, out: Array, what: str
) -> None:
    """Wait for a vector that a message has announced. Raises WireError naming its sender when it is damaged."""
    if told.nbytes != out.nbytes:
        raise WireError(f"rank {sender} sends {told.nbytes} bytes of {what}, expected {out.nbytes}")
    transport.receive_into(sender, Tag.VECTOR, out, what)
    if checksum(out) != told.checksum:
        raise WireError(f"rank {sender} sent {what} that does not match its checksum")
