"""What a protocol trains with, as the monitor sees it."""

from mpitrain.checkpoint import coordination
from mpitrain.training.context import Session


class Trainer:
    """Here one whose state is always at hand, and whose master saves alone; protocols know better."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def refresh(self) -> None:
        """Bring the session's state up to date before it is evaluated."""

    def save(self) -> None:
        """Start a checkpoint of the session's state, up to date."""
        coordination.save_state(self.session, [])
