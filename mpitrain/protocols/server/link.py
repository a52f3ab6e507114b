"""A worker's link to its master, which notes the master's messages as they come; and in round-robin order its part in
that, a token that passes from worker to worker."""

from collections.abc import Callable
from typing import TypeVar

from mpitrain.errors import WireError
from mpitrain.mpi import Transport
from mpitrain.protocols import messages
from mpitrain.protocols.messages import TO_MASTER, TO_NEXT, TO_WORKER, Assignment, FromWorker, Piece, Place, Token, pack
from mpitrain.training.context import Session

Wanted = TypeVar("Wanted", Assignment, Place, Piece)


class MasterLink:
    """Sends a worker's messages to its master, and holds what the master has told it.

    `stopping`: train no more; `over`: leave; `granted`: hand your gradient over; `saving`: copy your piece of a
    checkpoint and wait; `saved_as`: the name of the last one; `unconfirmed`: additions to the centre that are not known
    to have arrived; `unheard`: messages with losses to which the master has not answered the common rate.
    """

    def __init__(self, session: Session, master: int) -> None:
        self.session, self.transport, self.master = session, session.transport, master
        self.stopping = self.over = self.granted = False
        self.saving, self.saved_as = False, 0
        self.unconfirmed = self.unheard = 0
        self._answers: list[Assignment | Place | Piece] = []
        self._told = False  # whether the master knows of this rank's stop request, or that it has finished

    def tell(self, message: FromWorker) -> None:
        """Send a message."""
        self._told |= self.session.stop.flag or isinstance(message, messages.Done)
        self.unheard += isinstance(message, messages.PeriodLosses)
        if isinstance(message, messages.Gradient | messages.Report) and (amounts := self.session.figures.take()):
            TO_MASTER.tell(self.session, self.master, messages.Given(amounts))
        TO_MASTER.tell(self.session, self.master, message)

    def poll(self) -> bool:
        """Note what has come, and pass a stop request on; returns whether anything has come."""
        if self.session.stop.flag and not self._told:
            self.tell(messages.StopRequest())
        seen = False
        while (arrived := TO_WORKER.poll(self.transport, self.master)) is not None:
            seen = True
            match arrived[1].message:
                case messages.Finish():
                    self.stopping = True
                case messages.Leave():
                    self.stopping = self.over = True
                case messages.Grant():
                    self.granted = True
                case messages.Save():
                    self.saving = True
                case messages.Resume(name):
                    self.saving, self.saved_as = False, name
                case messages.Added():
                    self.unconfirmed -= 1
                case messages.Falls(number):
                    self.unheard -= 1
                    self.session.state.rate.hear(number)
                case answer:
                    self._answers.append(answer)
        return seen

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Take messages until the condition holds. Raises Overdue naming `what`."""
        self.transport.until(condition, what, [self.master], self.poll)

    def answer(self, wanted: type[Wanted], what: str) -> Wanted:
        """The master's next answer: to a claim, or a piece of the centre."""
        self.until(lambda: bool(self._answers), what)
        answer = self._answers.pop(0)
        if not isinstance(answer, wanted):
            raise WireError(f"rank {self.master} sent {answer} where {wanted.__name__} was due")
        return answer


class RoundRobin:
    """A worker's part in round-robin order: the one that holds the token has the turn. `token`: None while another
    worker has it."""

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
