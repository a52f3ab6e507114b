"""What a protocol trains with, as the monitor sees it."""

from mpitrain.checkpoint import coordination
from mpitrain.sampling.queue import Work
from mpitrain.training.context import Session


class Trainer:
    """Here one whose state is always at hand, and whose master saves alone; protocols know better."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def refresh(self) -> None:
        """Bring the session's state up to date before it is evaluated."""

    def save(self) -> None:
        """Start a checkpoint of the session's state, up to date."""
        self.save_with([])

    def save_with(self, outstanding: list[Work]) -> None:
        """The same, with work that was handed out and is not yet done."""
        assert self.session.saver is not None
        coordination.save_state(self.session.saver, self.session.state, outstanding)
