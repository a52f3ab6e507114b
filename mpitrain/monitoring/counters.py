"""What a rank counts while it trains: samples and losses, updates and their staleness, refusals, traffic."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from mpitrain.checkpoint.state import State
from mpitrain.sampling.means import Mean


class Counters:
    """The counts since this start of the program. The master's are the run's."""

    def __init__(self, state: State) -> None:
        self.updates, self.refusals, self.busy = 0, 0, 0.0
        self.staleness_sum, self.staleness_max = 0, 0
        self.traffic: dict[int, float] = {}  # bytes that each worker has said it sent and received
        self.counted: dict[str, Any] = {}  # what else a protocol counted, for summary.json
        self.trained_now = 0
        self._numbered = True
        self._stalenesses: Counter[int] = Counter()
        self._zeros, self._cosines = Mean(), Mean()
        self._recent = Mean()  # loss since it was last asked for
        self._recent_loss: float | None = None  # None before anything has been trained
        self._statistics: Callable[[], dict[str, Any]] = dict
        self.resume(state)

    def resume(self, state: State) -> None:
        """Count from this state on."""
        self.losses, self.trained_before = state.losses, state.trained

    # ---- what protocols report

    def trained(self, count: int, loss: float, busy: float = 0.0) -> None:
        """`count` samples with this summed loss have been trained on; the server was busy for so many seconds."""
        self.trained_now += count
        self.busy += busy
        self._recent.add(loss, count)
        self.losses.add(count, loss)

    def updated(self, staleness: int = 0, count: int = 1) -> None:
        """An update was applied, or `count` that are not stale or of unknown staleness."""
        self.updates += count
        self.staleness_sum += staleness
        self.staleness_max = max(self.staleness_max, staleness)
        self._stalenesses[staleness] += count

    def refused(self) -> None:
        """A gradient was not finite."""
        self.refusals += 1

    def gradient_statistics(self, zeros: float, minibatches: int, cosine: float | None) -> None:
        """Mean share of exact zeros in these minibatches' gradients, cosine between two workers' sums (Chan & Lane
        §3.4)."""
        self._zeros.add(zeros * minibatches, minibatches)
        if cosine is not None:
            self._cosines.add(cosine)

    def exchanged(self, worker: int, nbytes: float) -> None:
        """A worker has sent and received so many bytes so far."""
        self.traffic[worker] = nbytes

    def unnumbered(self) -> None:
        """Updates go to their place without a server that numbers them: their staleness is unknown."""
        self._numbered = False

    def note(self, counted: dict[str, Any]) -> None:
        """What else a protocol counted, for summary.json."""
        self.counted.update(counted)

    def add_statistics(self, recent: Callable[[], dict[str, Any]]) -> None:
        """Have "train" records hold what `recent` tells of the time since it was last called."""
        self._statistics = recent

    # ---- what is asked

    @property
    def trained_all(self) -> int:
        """Samples trained on, those before a resume included."""
        return self.trained_before + self.trained_now

    def recent_loss(self) -> float | None:
        """The mean loss since the last call, or before that where nothing was trained since."""
        if self._recent.count:
            self._recent_loss, self._recent = self._recent.value, Mean()
        return self._recent_loss

    def record(self) -> dict[str, Any]:
        """For a "train" record."""
        return {"updates": self.updates, **self._staleness(), **self._statistics()}

    def summary(self) -> dict[str, Any]:
        """For summary.json."""
        counted = {
            "updates": self.updates,
            **self._staleness(),
            "gradients_refused": self.refusals,
            "server_busy_seconds": self.busy,
            **self.counted,
        }
        if self.staleness_max:
            counted["staleness_histogram"] = {str(age): self._stalenesses[age] for age in sorted(self._stalenesses)}
        if self._zeros.count:
            counted["gradient_zeros_mean"] = self._zeros.value
            counted["gradient_cosine_mean"] = self._cosines.value
        return counted

    def _staleness(self) -> dict[str, float | None]:
        if not self._numbered:
            return {"staleness_mean": None, "staleness_max": None}
        return {"staleness_mean": self.staleness_sum / max(self.updates, 1), "staleness_max": self.staleness_max}
