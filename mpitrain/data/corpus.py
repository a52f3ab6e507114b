"""A corpus: one part of a data set, from which minibatches are gathered.

What rows of shards become, their kind says. A part below the memory limit is read completely, a larger one on demand,
but for the shards that may be kept in memory.
"""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import numpy as np
import xxhash

from mpitrain.data.augmentation import Augmentation
from mpitrain.data.frames import Frames
from mpitrain.data.images import Images
from mpitrain.data.kinds import InputKind, Reading
from mpitrain.data.normalising import NORMALISING, STATISTICS
from mpitrain.data.reader import OpenShards, ShardFile
from mpitrain.data.rows import Rows
from mpitrain.data.shards import NAMES, PREPARATION, class_names, part_shards, preparation
from mpitrain.data.sharing import ALONE, Sharing, held_once
from mpitrain.data.tokens import Tokens
from mpitrain.data.validation import Attributes, validate_range
from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.sampling.batch import Batch, Place

MEMORY_LIMIT = 4e9  # bytes
INPUT_KINDS: dict[str, type[InputKind]] = {"frames": Frames, "images": Images, "tokens": Tokens}


class Corpus:
    """One part of the shard folder `path`: `samples` of a `form` (inputs of frames [window, dims], of images [h, w, c],
    of tokens [window], whose targets are the tokens that follow) with targets in range(`classes`).

    `kind` is "frames", "images" or "tokens"; `attributes` are those of the first shard; `in_memory` says whether all
    inputs have been read, into `held_bytes` bytes. Of frames, `utterances` int64 [n+1] are the offsets where utterances
    begin, and `keys` their names, if any.
    """

    def __init__(
        self,
        path: Path,
        part: str,
        *,
        context: Sequence[int] = (),
        dtype: np.dtype | type | str = np.float32,
        memory_limit: float = MEMORY_LIMIT,
        augmentation: Augmentation | None = None,
        normalise: str = "corpus",
        statistics: Attributes | None = None,
        window: int = 0,
        threads: int = 1,
        hold: bool = True,
    ) -> None:
        """Open the part.

        `context`: numbers of frames left and right of the centre frame, or one number for both. `dtype`: that of the
        minibatches. `memory_limit`: inputs with more bytes than this stay on disk. `augmentation`: that of images.
        `normalise`: by the statistics of the "corpus" (stored mean and standard deviation), or of each "speaker" or
        "utterance" (frames); by the corpus's "mean" alone or by "unit", 255 (pixels); or "none". `statistics`: mean and
        standard_deviation to use instead of the stored ones. `window`: the tokens of a sample. `threads`: how many
        threads gather the pixels of a large minibatch. With `hold` False, call `hold()` before `gather`. Raises
        BadInput naming the folder, the shard, or the key of [data].
        """
        files = _opened(path, part)
        first = files[0]
        self.part, self.kind, self.classes, self.attributes = part, first.kind, first.classes, first.attributes
        if statistics is not None:
            own = {name: value for name, value in first.attributes.items() if name not in NORMALISING}
            self.attributes = {**own, **statistics}
        around = (context[0], context[-1]) if context else (0, 0)
        reading = Reading(part, around, np.dtype(dtype), augmentation or Augmentation(), normalise, window, threads)
        self._inputs = INPUT_KINDS[self.kind](files, self.attributes, reading)
        self.form, self.utterances = self._inputs.form, self._inputs.utterances
        self.shape = self.form.shape  #: that of an input
        self.targets = np.concatenate([file.targets for file in files])  # none of tokens, which are their own
        self.samples = len(self.targets) if self._inputs.samples is None else self._inputs.samples
        if not self.samples:
            raise BadInput(f"{path}: part {part} has no samples")
        self.keys = [key.decode() for file in files for key in file.small.get("keys", ())] or None
        self._digests = [str(file.attributes.get("xxh3_tokens", "")) for file in files]
        nbytes = np.cumsum([file.inputs_bytes for file in files])
        self._fitting = int(np.searchsorted(nbytes, memory_limit, "right"))  # how many shards the limit allows
        self.in_memory = self._fitting == len(files)
        self.held_bytes = int(nbytes[-1]) if self.in_memory else 0
        self._files, self._filling = files, Lock()
        if hold:
            self.hold()

    def hold(self, sharing: Sharing = ALONE, partly: bool = False) -> None:
        """Read the inputs that stay in memory, and find the statistics of groups. Raises BadInput naming a shard.

        Of a part above the memory limit, nothing stays in memory, or, if `partly`, the first shards, as many as fit.
        Collective over the processes of `sharing`, which keep one copy of these inputs.
        """
        files = self._files
        kept = self._fitting if self.in_memory or partly else 0
        self._rows = Rows(files, kept, sharing)
        self.held_bytes = sum(file.inputs_bytes for file in files[:kept])
        self._inputs.hold(self._rows, sharing)
        self.targets = held_once(self.targets, sharing)
        self._files = []

    def identity(self) -> str:
        """A checksum by which ranks compare their copies: of the targets, or, for tokens, of the shards' checksums."""
        return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(self.targets).tobytes() + "".join(self._digests).encode())

    def gather(self, indices: Array, out: Batch, place: Place = None) -> Batch:
        """Fill `out`, which has room for n samples, with those of `indices` int64 [n], in that order; return it.

        `place` is the epoch of the first sample and its position in the epoch's order, which determine the augmentation
        of images; None, for an evaluation, gives centre crops. Raises IndexError for an index outside range(samples),
        BadInput for a shard that cannot be read.
        """
        if not len(indices):
            return out
        if indices.min() < 0 or indices.max() >= self.samples:
            raise IndexError(f"samples {indices.min()} to {indices.max()} of {self.samples}")
        with self._filling:  # a thread may read ahead while an evaluation reads the same part
            if len(self.targets):
                np.take(self.targets, indices, out=out.targets, mode="clip")
            self._inputs.gather(self._rows, indices, out, place)
        return out


def _opened(path: Path, part: str) -> list[ShardFile]:
    """The shards of a part. Raises BadInput naming the folder, or a shard that differs from the first."""
    together = OpenShards()
    files = [ShardFile(file, together) for file in part_shards(path, part)]
    first = files[0]
    for file in files[1:]:
        same = (file.kind, file.classes, file.inputs[1:]) == (first.kind, first.classes, first.inputs[1:])
        same = same and file.dtype == first.dtype
        if ("keys" in file.small) != ("keys" in first.small):
            raise BadInput(f"{file.path}: keys of utterances are here or in {first.path.name}, not in both")
        if not same or any(
            not np.array_equal(file.attributes.get(name, 0), first.attributes.get(name, 0)) for name in STATISTICS
        ):
            raise BadInput(f"{file.path}: another kind, shape, classes or normalisation than {first.path.name}")
    for name, read in ((NAMES, class_names), (PREPARATION, preparation)):
        told = [(file.path, value) for file in files if (value := read(file.attributes))]
        for other, value in told[1:]:
            if value != told[0][1]:
                raise BadInput(f"{other}: another {name} than {told[0][0].name}")
    if part == "train":
        validate_range(path, first.classes, sum(file.inputs[0] for file in files))
    return files
