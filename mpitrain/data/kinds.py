"""What the kinds of shards have in common: their rows become samples, as a configuration wants to read them."""

from dataclasses import dataclass

import numpy as np

from mpitrain.data.augmentation import Augmentation
from mpitrain.data.reader import ShardFile
from mpitrain.data.rows import Rows
from mpitrain.data.sharing import Sharing
from mpitrain.data.validation import Attributes
from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.sampling.batch import Batch, Place, SampleForm


@dataclass(frozen=True)
class Reading:
    """How the samples of a `part` are read, by keys of [data], which `Corpus` explains."""

    part: str
    context: tuple[int, int]
    dtype: np.dtype
    augmentation: Augmentation
    normalise: str
    window: int
    threads: int

    def refuse_window(self, file: ShardFile) -> None:
        """Raise BadInput if windows are wanted, of a kind that has no tokens."""
        if self.window:
            raise BadInput(f"data.window = {self.window}: for tokens; {file.path.parent} holds {file.kind}")


class InputKind:
    """A kind of shards: their rows become samples of a `form`, as many as there are rows unless it counts `samples`.

    `utterances` int64 [n+1]: the offsets where utterances begin, None if there are none.
    """

    form: SampleForm
    samples: int | None = None
    utterances: Array | None = None

    def __init__(self, files: list[ShardFile], attributes: Attributes, reading: Reading) -> None:
        """For the shards of a part. Raises BadInput naming a shard, or a key of [data] that this kind does not take."""

    def hold(self, rows: Rows, sharing: Sharing) -> None:
        """Prepare to gather from these rows. Collective over the processes of `sharing`."""

    def gather(self, rows: Rows, indices: Array, out: Batch, place: Place) -> None:
        """Fill the inputs of `out` with those of samples `indices`, and the targets if they are among the rows."""
        raise NotImplementedError
