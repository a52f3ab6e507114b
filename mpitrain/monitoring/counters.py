"""Counts of a training, and figures: numbers that ranks give by name, and that the master combines over the ranks.

Both arrive in metrics.jsonl and TensorBoard (figures: what was given since the last record), in summary.json (since the
start of the program), and in the report. A new figure is an entry of records.FIGURES, and a `give` where its number is
known.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from mpitrain.checkpoint.state import State
from mpitrain.errors import WireError
from mpitrain.files import Record
from mpitrain.monitoring.records import FIGURES
from mpitrain.mpi import Transport
from mpitrain.stopwatch import Listener

#: By name, the sum of the values that were given, and their number.
Amounts = dict[str, tuple[float, int]]
OWN = -1  # this rank, whichever it is


class RankFigures:
    """The figures given on this rank and, on the master, those that other ranks have sent."""

    def __init__(self) -> None:
        self._recent: dict[str, dict[int, tuple[float, int]]] = {}  # by name and rank
        self._whole: dict[str, dict[int, tuple[float, int]]] = {}

    def give(self, name: str, total: float, count: int = 1, rank: int = OWN) -> None:
        """Add `count` values with this sum; for a "maximum" or the "newest", one value or none."""
        for by_name in (self._recent, self._whole):
            of_ranks = by_name.setdefault(name, {})
            before, number = of_ranks.get(rank, (0, 0))
            match FIGURES[name].how:
                case "newest":
                    of_ranks[rank] = total, count
                case "maximum":
                    of_ranks[rank] = max(before, total) if number else total, 1
                case _:
                    of_ranks[rank] = before + total, number + count

    def take(self) -> Amounts:
        """What this rank has given since the last call, to tell the master, which does not call this."""
        recent, self._recent = self._recent, {}
        return {name: of_ranks[OWN] for name, of_ranks in recent.items()}

    def add(self, rank: int, amounts: Mapping[str, tuple[float, int]]) -> None:
        """Add what another rank has sent. Raises WireError naming it for a figure that does not exist."""
        if not amounts.keys() <= FIGURES.keys():
            raise WireError(f"rank {rank} sent figures that do not exist")
        for name, (total, count) in amounts.items():
            self.give(name, total, count, rank)

    def gather(self, transport: Transport) -> None:
        """Add on the first rank what the others have given since the last call. Collective."""
        mine = self.take() if transport.rank else {}
        texts = transport.gather_texts(msgspec.json.encode(mine).decode(), "the figures")
        for rank, text in enumerate(texts if transport.rank == 0 else []):
            self.add(rank, msgspec.json.decode(text, type=Amounts))

    def recent(self) -> Record:
        """What was given since the last call, for a "train" record."""
        recent, self._recent = self._recent, {}
        newest = {name for name in recent if FIGURES[name].how == "newest"}
        return {name: _combined(name, self._whole[name] if name in newest else recent[name]) for name in recent}

    def whole(self) -> Record:
        """What was given since the start of the program, for summary.json."""
        return {name: _combined(name, of_ranks) for name, of_ranks in self._whole.items()}


def _combined(name: str, of_ranks: Mapping[int, tuple[float, int]]) -> float | None:
    totals, counts = zip(*of_ranks.values(), strict=True)
    match FIGURES[name].how:
        case "sum":
            return sum(totals)
        case "maximum":
            return max(totals)
    return sum(totals) / sum(counts) if any(counts) else None


class Counters:
    """The counts since this start of the program: samples and losses, updates and their staleness, refused gradients,
    traffic; on the master, those of the whole run."""

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
