"""A checkpoint of ranks that run freely: the two halves of its conversation.

The master asks (`Collection`). Each rank copies its piece between two minibatches and waits (`give_piece`). When all
have, nothing moves: the master copies its own, lets all go on, and threads write the copies.
"""

from typing import TYPE_CHECKING

from mpitrain.checkpoint import coordination
from mpitrain.checkpoint.coordination import REFUSED
from mpitrain.checkpoint.state import State
from mpitrain.protocols.messages import TO_WORKER, Copied, Resume, Save, Unused
from mpitrain.sampling.queue import Work

if TYPE_CHECKING:
    from mpitrain.protocols.orders import Orders
    from mpitrain.training.context import Session


class Collection:
    """The master's side of a checkpoint of free-running ranks: asks on construction; `release` once `complete`."""

    def __init__(self, session: "Session", workers: list[int]) -> None:
        self.session, self.workers = session, workers
        self._sizes: dict[int, int] = {}
        self._post(Save())

    @property
    def complete(self) -> bool:
        """Whether every rank has copied its piece and waits."""
        return len(self._sizes) == len(self.workers)

    def copied(self, sender: int, nbytes: int) -> None:
        """A rank has copied its piece, which is so large, and waits."""
        self._sizes[sender] = nbytes

    def release(self, state: State, unused: list[Work]) -> None:
        """Copy the master's part, let the ranks go on, and start writing. `unused`: samples that the ranks hold."""
        saver, rank = self.session.saver, self.session.transport.rank
        assert saver is not None
        own, whole = saver.copy_own(state), saver.copy_state(state, unused)
        nbytes = whole.nbytes + (own.nbytes if own else 0) + sum(self._sizes.values())
        begun = coordination.begun(saver, state.trained, nbytes, last=False)
        self._post(Resume(state.trained if begun else REFUSED))
        if not begun:
            return
        if own is not None:
            saver.write_own(state.trained, rank, own)
        saver.commit(state.trained, whole, [*self._sizes, *([rank] if own else [])])

    def _post(self, message: Save | Resume) -> None:
        for worker in self.workers:
            TO_WORKER.post(self.session.transport, worker, message)


def give_piece(session: "Session", orders: "Orders", rest: list[Work]) -> None:
    """A rank's answer to Save: it copies its piece, names the samples it was given and has not used, and waits until
    all have done so; then it goes on, while the piece is written.

    What this rank has sent before must be where it belongs.
    """
    saver = session.saver
    assert saver is not None
    piece = saver.copy_own(session.state)
    assert piece is not None
    for work in rest:
        orders.tell(Unused(work))
    orders.tell(Copied(piece.nbytes))
    orders.until(lambda: not orders.saving, "the other ranks to stop for a checkpoint")
    if orders.saved_as != REFUSED:
        saver.write_own(orders.saved_as, session.transport.rank, piece)
