"""Figures: numbers that ranks give by name, and that the master combines over the ranks.

They arrive in metrics.jsonl and TensorBoard (what was given since the last record), in summary.json (since the start of
the program), and in the report. A new figure is an entry of records.FIGURES, and a `give` where its number is known.
"""

from collections.abc import Mapping

import msgspec

from mpitrain.errors import WireError
from mpitrain.files import Record
from mpitrain.monitoring.records import FIGURES
from mpitrain.mpi import Transport

#: By name, the sum of the values that were given, and their number.
Amounts = dict[str, tuple[float, int]]
OWN = -1  # this rank, whichever it is


class RankFigures:
    """The figures given on this rank and, on the master, those that other ranks have sent."""

    def __init__(self) -> None:
        self._recent: dict[str, dict[int, tuple[float, int]]] = {}  # by name and rank
        self._whole: dict[str, dict[int, tuple[float, int]]] = {}

    def give(self, name: str, total: float, count: int = 1, rank: int = OWN) -> None:
        """Add `count` values with this sum; for the "newest", one value or none."""
        for by_name in (self._recent, self._whole):
            of_ranks = by_name.setdefault(name, {})
            before, number = of_ranks.get(rank, (0, 0))
            newest = FIGURES[name].how == "newest"
            of_ranks[rank] = (total, count) if newest else (before + total, number + count)

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
    if FIGURES[name].how == "sum":
        return sum(totals)
    return sum(totals) / sum(counts) if any(counts) else None
