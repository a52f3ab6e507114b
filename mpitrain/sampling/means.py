"""Running means of losses, without storing all values."""

from collections import deque

START = 32  # samples whose mean loss is that of the start: a single one may be fitted by chance
CHUNKS = 256  # the least number of chunks of an epoch, unless it has fewer minibatches


class Losses:
    """The losses of the last `epoch` samples, in small chunks that a checkpoint can store.

    Chunks depend on the counts alone, and none spans the end of an epoch unless a single count does, so that the mean
    over an epoch is reproducible to the bit, whenever it is computed.
    """

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._chunks: deque[tuple[int, float]] = deque()  # samples, and their summed loss
        self._held = 0  # samples in the chunks
        self._counted = 0  # samples since the training began
        self.first: float | None = None  # the mean of the START samples that were counted first, or of more
        self.highest: float | None = None  # the highest mean of an epoch

    def add(self, count: int, loss: float) -> None:
        """Add `count` more samples, whose summed loss is `loss`."""
        if not count:
            return
        if self._counted < START:
            self.first = ((self.first or 0.0) * self._counted + loss) / (self._counted + count)
        if self._counted % self._epoch and self._chunks and self._chunks[-1][0] + count <= self._epoch / CHUNKS:
            before, so_far = self._chunks.pop()
            self._chunks.append((before + count, so_far + loss))
        else:
            self._chunks.append((count, loss))
        self._held += count
        self._counted += count
        while self._held - self._chunks[0][0] >= self._epoch:
            self._held -= self._chunks.popleft()[0]
        if self._counted % self._epoch < count and (mean := self.mean(self._epoch)) is not None:  # an epoch has ended
            self.highest = mean if self.highest is None else max(self.highest, mean)

    def mean(self, samples: int) -> float | None:
        """The mean over the last `samples` samples, at most an epoch, or over all if there are fewer; None if there are
        none. A chunk that begins before them is weighted in proportion."""
        over = left = min(samples, self._epoch, self._held)
        total = 0.0
        for count, loss in reversed(self._chunks):
            if not left:
                break
            total += loss if count <= left else loss * left / count
            left -= min(count, left)
        return total / over if over else None

    def numbers(self) -> list[tuple[int, float]]:
        """The chunks, for a checkpoint."""
        return list(self._chunks)

    def restore(
        self, chunks: list[tuple[int, float]], first: float | None, highest: float | None, counted: int
    ) -> None:
        """Restore a checkpoint after `counted` samples."""
        self._chunks, self.first, self.highest = deque(chunks), first, highest
        self._held, self._counted = sum(count for count, _ in chunks), counted
