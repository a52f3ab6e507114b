"""What a free-running worker hears from its master, filed as it comes: end, save, go on, and answers."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from mpitrain.errors import WireError
from mpitrain.protocols.wire import Kind, Note, unpack

if TYPE_CHECKING:
    from mpitrain.training.context import Session

TO_MASTER, TO_WORKER, VECTOR, TO_NEXT = 1, 2, 3, 4  # message tags


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
        self._answers: list[Note] = []

    def tell(self, note: Note) -> None:
        """Send a note, with this rank's wish to stop."""
        note = replace(note, stopping=int(self.session.stop.flag), traffic=self.transport.traffic.both)
        self.transport.post(self.master, TO_MASTER, note.pack())

    def look(self) -> bool:
        """File what has come; whether anything has."""
        seen = False
        while (message := self.transport.poll(TO_WORKER, self.master)) is not None:
            note, seen = unpack(message[1], self.master), True
            match note.kind:
                case Kind.STOP:
                    self.stopping, self.over = True, bool(note.stopping)
                case Kind.SAVE:
                    self.saving = True
                case Kind.RESUME:
                    self.saving, self.saved_as = False, note.count
                case Kind.ADDED:
                    self.unconfirmed -= 1
                case Kind.WORK | Kind.SNAPSHOT:
                    self._answers.append(note)
                case _:
                    raise WireError(f"rank {self.master} sent a note of kind {note.kind}, which no master sends")
        return seen

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """File notes until the condition holds. Raises Overdue naming `what`."""
        backoff = self.transport.backoff(what, [self.master])
        while not condition():
            if not self.look():
                backoff.pause()

    def answer(self, kind: Kind, what: str) -> Note:
        """The master's next answer: to a claim, or on a piece of the centre."""
        self.until(lambda: bool(self._answers), what)
        note = self._answers.pop(0)
        if note.kind != kind:
            raise WireError(f"rank {self.master} sent a note of kind {note.kind} instead of {kind}")
        return note
