"""Sparse averages: ranks send the largest elements of the change of their parameters, and keep the rest for later."""

import numpy as np

from mpitrain.algorithms.roles import AveragingRule
from mpitrain.checkpoint.state import Numbers, Vectors
from mpitrain.compression.chunks import LargestOfChunks
from mpitrain.compression.compressor import Compressor, Thresholds
from mpitrain.compression.message import CorruptMessage
from mpitrain.compression.residual import INDEX, SIGN
from mpitrain.errors import WireError
from mpitrain.flat import Array, block_of, block_slices, pieces_of
from mpitrain.training.context import Session


class CompressedCentre:
    """Like `model_averaging.CommonCentre`, but the centre moves by the mean of the entries that all ranks send.

    The rule's vector "error" holds what x has moved and what was not sent before; entries are its largest elements.
    """

    def __init__(self, session: Session, rule: AveragingRule, vectors: Vectors) -> None:
        assert rule.largest is not None
        self._options = rule.largest
        self._session, self._rule, self._vectors = session, rule, vectors
        self._error, self._ranks = rule.vectors["error"], len(session.members)
        self._compressor = largest(session, self._error, self._options.top_k, self._options.chunk, self._options.bits)
        self._out = np.empty(self._compressor.wire.capacity, np.uint8)
        self._messages: list[Array] = []

    def start(self, eta: float, t: int) -> None:
        """Send this rank's entries at the step t, and get the others'."""
        theta, x, compressor = self._vectors["theta"], self._rule.local.x, self._compressor
        self._rule.begin(eta, self._ranks)
        # e ← βe + (Θ − x);  s = Q(the largest of e);  e ← e − s
        np.multiply(self._error, self._options.decay, out=self._error)
        np.subtract(theta, x, out=x)
        compressor.begin(1.0, 1.0, emit=True)
        entries = compressor.end(x)
        rank = self._session.transport.rank
        message = compressor.wire.encode(entries, rank, t, 1, compressor.threshold, self._out)
        give = self._session.figures.give
        give("density", entries.words.size / theta.size)
        give("compression_ratio", theta.nbytes / message.nbytes)
        give("bytes_per_minibatch", message.nbytes, self._options.tau)
        give("bits_per_element", 8 * message.nbytes, entries.words.size)
        self._messages = self._exchange(message)

    def progress(self) -> None:
        """Do nothing: `start` has received all messages."""

    def end(self) -> None:
        """Move the centre by the mean of the entries. Raises WireError naming the rank whose message is damaged."""
        theta, x, device = self._vectors["theta"], self._rule.local.x, self._session.device
        # Sums of integers are the same on all ranks, and so is Θ, to the bit.
        total, unit = np.zeros(theta.size, np.int64), 0.0
        for rank, message in enumerate(self._messages):
            try:
                header, entries = self._compressor.wire.decode(message, rank)
            except CorruptMessage as error:
                raise WireError(f"rank {self._session.transport.rank}: {error}") from error
            levels = entries.levels.astype(np.int64) if entries.levels.size else np.int64(1)
            total[entries.words & INDEX] += np.where(entries.words & SIGN, -levels, levels)
            unit = header.threshold
        # The ranks' mean is Θ − mean(s).
        for b in block_slices(slice(0, theta.size), block_of(theta)):
            mean = device.to_device((total[b] * (unit / self._ranks)).astype(theta.dtype))
            np.subtract(theta[b], mean, out=x[b])
            self._rule.take(b, {name: vector[b] for name, vector in self._vectors.items()}, 1)

    def _exchange(self, message: Array) -> list[Array]:
        transport, what = self._session.transport, "the other ranks' entries"
        sizes = np.zeros(self._ranks, np.int64)
        transport.wait(transport.start_gather(np.array([message.size]), sizes, [1] * self._ranks), what)
        everything = np.empty(int(sizes.sum()), np.uint8)
        transport.wait(transport.start_gather(message, everything, sizes.tolist()), what)
        return [everything[piece] for piece in pieces_of(sizes.tolist())]


def largest(session: Session, residual: Array, top_k: int, chunk: int, bits: int, codec: str = "auto") -> Compressor:
    """A compressor that emits the largest entries of each chunk; for a phantom, which has no values, as many."""
    if session.device.phantom:
        numbers: Numbers = {"threshold": 1.0}
        return Thresholds(residual, numbers, bits, codec, 0.0, 0.0, session.device.emit, session.device.host_words)
    tensors = list(session.network.layout.slices.values())
    return LargestOfChunks(residual, tensors, top_k, chunk, bits, codec)
