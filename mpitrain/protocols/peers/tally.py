"""The master's sums over all peers' reports: progress for the counters, density and compression for the metrics."""

from typing import Any

from mpitrain.monitoring.counters import Counters, Extra
from mpitrain.protocols.messages import Totals


class Tally(Extra):
    """Takes cumulative reports, tells `counters` what is new in them, and describes the exchange.

    `length` is the number of parameters, `itemsize` the bytes of one in a dense exchange.
    """

    def __init__(self, counters: Counters, length: int, itemsize: int) -> None:
        super().__init__()
        self._counters, self._length, self._itemsize = counters, length, itemsize
        self._reports: dict[int, Totals] = {}
        self._shown = Totals()

    def take(self, rank: int, report: Totals) -> None:
        """A rank's newest report, or an older one come late."""
        before = self._reports.get(rank, Totals())
        if report.minibatches > before.minibatches:
            self._counters.trained(report.samples - before.samples, report.loss - before.loss)
        if report.minibatches >= before.minibatches:
            self._reports[rank] = report

    def recent(self) -> dict[str, Any]:
        """The exchange since the last call."""
        now, before = self._sum(), self._shown
        self._shown = now
        return self._describe(now, before)

    def whole(self) -> dict[str, Any]:
        """The exchange since the start of the program."""
        return self._describe(self._sum(), Totals())

    def _sum(self) -> Totals:
        reports = list(self._reports.values())
        sums = {
            name: sum(getattr(report, name) for report in reports)
            for name in ("samples", "loss", "minibatches", "messages", "elements", "nbytes")
        }
        ranks = [report for report in reports if report.minibatches] or [Totals()]
        norms = [report.residual for report in ranks if report.residual is not None]
        threshold = sum(report.threshold for report in ranks) / len(ranks)
        return Totals(**sums, threshold=threshold, residual=sum(norms) / len(norms) if norms else None)

    def _describe(self, now: Totals, before: Totals) -> dict[str, Any]:
        minibatches = now.minibatches - before.minibatches
        if not minibatches:
            return {}
        elements, nbytes = now.elements - before.elements, now.nbytes - before.nbytes
        dense = self._length * self._itemsize * minibatches
        return {
            "density": elements / (self._length * minibatches),
            "threshold": now.threshold,
            "residual_norm": now.residual if self._counters.measures else None,
            "bytes_per_minibatch": nbytes / minibatches,
            "compression_ratio": dense / nbytes if nbytes else None,
            "bits_per_element": 8 * nbytes / elements if elements else None,
            "emissions_skipped": minibatches - (now.messages - before.messages),
        }
