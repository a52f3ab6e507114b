"""The master's sums over all peers' reports: progress for the counters, and figures of the exchange."""

from mpitrain.monitoring.counters import Counters
from mpitrain.protocols.messages import Totals


class Tally:
    """Takes cumulative reports, and tells `counters` what is new in them.

    `length` is the number of parameters, `itemsize` the bytes of one in a dense exchange.
    """

    def __init__(self, counters: Counters, length: int, itemsize: int) -> None:
        self._counters, self._length, self._itemsize = counters, length, itemsize
        self._reports: dict[int, Totals] = {}

    def take(self, rank: int, report: Totals) -> None:
        """A rank's newest report, or an older one come late."""
        before = self._reports.get(rank, Totals())
        if report.minibatches < before.minibatches or report == before:
            return
        self._reports[rank] = report
        if report.minibatches > before.minibatches:
            self._counters.trained(report.samples - before.samples, report.loss - before.loss)
        self._describe(rank, before, report)

    def _describe(self, rank: int, before: Totals, now: Totals) -> None:
        residual = now.residual if self._counters.measures else None
        give = self._counters.figures.give
        give("threshold", now.threshold, 1, rank)
        give("residual_norm", residual or 0.0, int(residual is not None), rank)
        minibatches, elements = now.minibatches - before.minibatches, now.elements - before.elements
        if not minibatches:
            return
        nbytes, messages = now.nbytes - before.nbytes, now.messages - before.messages
        give("density", elements, self._length * minibatches, rank)
        give("bytes_per_minibatch", nbytes, minibatches, rank)
        give("compression_ratio", self._length * self._itemsize * minibatches, nbytes, rank)
        give("bits_per_element", 8 * nbytes, elements, rank)
        give("emissions_skipped", minibatches - messages, rank=rank)
