"""Counts of a training: samples and losses, updates and their staleness, refused gradients, traffic."""

from collections import Counter

from mpitrain.checkpoint.state import State
from mpitrain.files import Record
from mpitrain.monitoring.figures import RankFigures
from mpitrain.stopwatch import Listener


class Counters:
    """The counts since this start of the program; on the master, those of the whole run."""

    listener: Listener | None = None

    def __init__(self, state: State, figures: RankFigures) -> None:
        self.figures = figures
        self.totals: Record = {}  # further counts of a protocol, for the summary
        self.updates, self.busy = 0, 0.0  # `busy`: seconds of a server's updates
        self.refusals, self.samples_dropped = 0, 0  # gradients that were not finite; samples of gradients too stale
        self.staleness_sum, self.staleness_max = 0, 0
        self.traffic: dict[int, float] = {}  # bytes sent and received so far, as reported by each worker
        self.trained_now = 0
        self.numbered = True  # whether a server numbers the updates, so that staleness is known
        self.measures = True  #: whether losses are those of gradients, and not of phantoms
        self._stalenesses: Counter[int] = Counter()
        self._recent_sum, self._recent_count = 0.0, 0  # losses since the last call of recent_loss
        self._recent_loss: float | None = None  # None until samples have been trained on
        self.resume(state)

    def resume(self, state: State) -> None:
        """Count from this state on, after a resume."""
        self.state, self.losses, self.trained_before = state, state.losses, state.trained

    # ---- reports of protocols

    def trained(self, count: int, loss: float, busy: float = 0.0) -> None:
        """Add `count` samples with this sum of losses, and the seconds for which the server was `busy`."""
        self.trained_now += count
        self.busy += busy
        if self.measures:
            self._recent_sum, self._recent_count = self._recent_sum + loss, self._recent_count + count
            self.losses.add(count, loss)

    def updated(self, staleness: int = 0, count: int = 1) -> None:
        """Add an update, or `count` updates that are not stale or whose staleness is unknown."""
        self.updates += count
        self.staleness_sum += staleness
        self.staleness_max = max(self.staleness_max, staleness)
        self._stalenesses[staleness] += count
        if self.listener is not None:
            for _ in range(count):
                self.listener.instant("update", {"staleness": staleness} if self.numbered else {})

    # ---- results

    @property
    def trained_all(self) -> int:
        """Number of samples trained on, including those before a resume."""
        return self.trained_before + self.trained_now

    def counted(self) -> State:
        """The state, with the number of samples brought up to date."""
        self.state.trained = self.trained_all
        return self.state

    def recent_loss(self) -> float | None:
        """The mean loss since the last call, or before it if nothing was trained on since."""
        if self._recent_count:
            self._recent_loss = self._recent_sum / self._recent_count
            self._recent_sum, self._recent_count = 0.0, 0
        return self._recent_loss

    def record(self) -> Record:
        """The counts for a "train" record."""
        return {"updates": self.updates, **self._staleness(), **self.figures.recent()}

    def summary(self) -> Record:
        """Counts for summary.json."""
        counted: Record = {
            "updates": self.updates,
            **self._staleness(),
            "gradients_refused": self.refusals,
            "samples_dropped": self.samples_dropped,
            "server_busy_seconds": self.busy,
            **self.totals,
            **self.figures.whole(),
        }
        if self.staleness_max:
            counted["staleness_histogram"] = {str(age): self._stalenesses[age] for age in sorted(self._stalenesses)}
        return counted

    def _staleness(self) -> Record:
        """Mean and maximum staleness of the updates; None if they are not numbered."""
        known = (self.staleness_sum / max(self.updates, 1), self.staleness_max) if self.numbered else (None, None)
        return dict(zip(("staleness_mean", "staleness_max"), known, strict=True))
