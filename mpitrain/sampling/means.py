"""Means that a run tells of itself, without keeping all that they are taken of."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

CHUNKS = 256  # of an epoch, at least, where its minibatches are smaller


@dataclass
class Mean:
    """A running mean."""

    total: float = 0.0
    count: int = 0

    def add(self, total: float, count: int = 1) -> None:
        """`count` more values with this sum."""
        self.total, self.count = self.total + total, self.count + count

    @property
    def value(self) -> float | None:
        """The mean; None of nothing."""
        return self.total / self.count if self.count else None


class Losses:
    """The losses of the last `epoch` samples that were counted, in small chunks that a checkpoint can keep.

    Chunks depend on the counts alone, and none reaches over an epoch's end unless a count itself does: so the mean
    over an epoch repeats to the bit, whenever it is asked for.
    """

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._chunks: deque[tuple[int, float]] = deque()  # samples, and their summed loss
        self._held = 0  # samples in the chunks
        self._counted = 0  # since the training began
        self.first: float | None = None  # mean of what was counted first

    def add(self, count: int, loss: float) -> None:
        """`count` more samples, with this summed loss."""
        if not count:
            return
        if self.first is None:
            self.first = loss / count
        if self._counted % self._epoch and self._chunks and self._chunks[-1][0] + count <= self._epoch / CHUNKS:
            before, so_far = self._chunks.pop()
            self._chunks.append((before + count, so_far + loss))
        else:
            self._chunks.append((count, loss))
        self._held += count
        self._counted += count
        while self._held - self._chunks[0][0] >= self._epoch:
            self._held -= self._chunks.popleft()[0]

    def mean(self, samples: int) -> float | None:
        """The mean over the last `samples` samples, at most an epoch's, or over all where there are fewer; None where
        there is none. A chunk that lies partly before them counts in proportion."""
        over = left = min(samples, self._epoch, self._held)
        total = 0.0
        for count, loss in reversed(self._chunks):
            if not left:
                break
            total += loss if count <= left else loss * left / count
            left -= min(count, left)
        return total / over if over else None

    def numbers(self) -> list[tuple[int, float]]:
        """What a checkpoint keeps."""
        return list(self._chunks)

    def restore(self, chunks: Iterable[tuple[int, float]], counted: int) -> None:
        """Go on from a checkpoint after `counted` samples; older ones have no chunks."""
        self._chunks = deque((int(count), float(loss)) for count, loss in chunks)
        self._held, self._counted = sum(count for count, _ in self._chunks), counted
