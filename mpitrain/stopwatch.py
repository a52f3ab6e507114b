"""Where a rank's time goes: computing, data, communication and waiting, as the EASGD paper's supplement tables it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

#: "computing": gradients, with what is done as their parts become final; "data": minibatches that were not read ahead;
#: "communication": its own messages, collectives and one-sided operations; "waiting": until other ranks have done
#: something; "evaluation"; "rest": updates, checkpoints and everything else.
KINDS = ("computing", "data", "communication", "waiting", "evaluation", "rest")


class Stopwatch:
    """Seconds by kind. One kind counts at a time: an inner one interrupts the outer one."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.start()

    def start(self) -> None:
        """Count from now on."""
        self.seconds = dict.fromkeys(KINDS, 0.0)
        self._kind, self._since = "rest", self._clock()

    def switch(self, kind: str) -> str:
        """Count for another kind from now on; the kind before."""
        now, before = self._clock(), self._kind
        self.seconds[before] += now - self._since
        self._kind, self._since = kind, now
        return before

    @contextmanager
    def on(self, kind: str) -> Iterator[None]:
        """Context that counts for a kind."""
        before = self.switch(kind)
        try:
            yield
        finally:
            self.switch(before)

    def read(self) -> dict[str, float]:
        """The seconds by kind until now."""
        self.switch(self._kind)
        return dict(self.seconds)


def shares(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean share of each kind in the ranks' time; 0 for all if there is none."""
    sums = {kind: sum(each[kind] for each in ranks) for kind in KINDS}
    total = sum(sums.values())
    return {kind: seconds / total if total else 0.0 for kind, seconds in sums.items()}


def shares_text(ranks: Sequence[Mapping[str, float]]) -> str:
    """For the closing table, without kinds below half a percent."""
    return ", ".join(f"{kind} {share:.0%}" for kind, share in shares(ranks).items() if share >= 0.005)
