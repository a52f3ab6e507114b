"""A corpus: one part of a data set, from which minibatches are gathered.

Context windows of frames are cut on the fly, never across utterances; images are converted to floating point numbers,
cropped and augmented; both are normalised. Tokens are cut into windows, one after the other, across documents. A part
below the memory limit is read completely, a larger one on demand, but for the shards that may be kept in memory.
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import numpy as np
import xxhash

from mpitrain.data.augmentation import Augmentation, Views, colour_axes
from mpitrain.data.gather import gather_images, gather_tokens, gather_windows
from mpitrain.data.normalising import NORMALISING, STATISTICS, group_statistics, normalise_frames, of_pixels, stored
from mpitrain.data.reader import OpenShards, ShardFile
from mpitrain.data.rows import Rows
from mpitrain.data.shards import NAMES, PREPARATION, class_names, part_shards, preparation
from mpitrain.data.sharing import ALONE, Sharing, held_once
from mpitrain.data.validation import Attributes, validate_range
from mpitrain.errors import BadInput
from mpitrain.flat import Array, share
from mpitrain.sampling.batch import Batch, Place, SampleForm

MEMORY_LIMIT = 4e9  # bytes
SHARE = 1 << 20  # bytes of a minibatch's pixels for which another thread saves time


class Corpus:
    """One part of the shard folder `path`: `samples` of a `form` (inputs of frames [window, dims], of images [h, w, c],
    of tokens [window], whose targets are the tokens that follow) with targets in range(`classes`).

    `kind` is "frames", "images" or "tokens"; `attributes` are those of the first shard; `in_memory` says whether all
    inputs have been read, into `held_bytes` bytes. `mean` and `scale` (1 ÷ standard deviation) are per channel for
    images, per group and feature for frames. For frames, `utterances` int64 [n+1] are the offsets where utterances
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
        self.targets = np.concatenate([file.targets for file in files])
        self.samples = len(self.targets)
        if not self.samples and self.kind != "tokens":
            raise BadInput(f"{path}: part {part} has no samples")
        frames = [np.diff(file.small["utterances"]) for file in files] if self.kind == "frames" else None
        self.utterances = None if frames is None else np.cumsum(np.concatenate([[0], *frames]))
        self.keys = [key.decode() for file in files for key in file.small.get("keys", ())] or None
        self._digests = [str(file.attributes.get("xxh3_tokens", "")) for file in files]
        self._context = (context[0], context[-1]) if context else (0, 0)
        self._normalise, self._filling = normalise, Lock()
        self._threads, self._pool = threads, ThreadPoolExecutor(threads, "pixels")
        nbytes = np.cumsum([file.inputs_bytes for file in files])
        self._fitting = int(np.searchsorted(nbytes, memory_limit, "right"))  # how many shards the limit allows
        self.in_memory = self._fitting == len(files)
        self.held_bytes = int(nbytes[-1]) if self.in_memory else 0
        if self.kind == "images":
            self._see(first, augmentation or Augmentation(), np.dtype(dtype))
        elif augmentation is not None:
            augmentation.refuse(self.kind)
        if self.kind == "tokens":
            self._read(files, window)
        elif window:
            raise BadInput(f"data.window = {window}: for tokens; {path} holds {self.kind}")
        if self.kind == "frames":
            self._hear(files)
        self.shape = self.form.shape  #: that of an input
        self._files = files
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
        if self.kind == "frames":
            sharing.together(self._measure)
            self._rows.change(self._normalised)
        self.targets = held_once(self.targets, sharing)
        self._files = []

    def _see(self, first: ShardFile, augmentation: Augmentation, dtype: np.dtype) -> None:
        if any(self._context):
            raise BadInput(f"data.context = {list(self._context)}: images have no neighbouring frames")
        height, width, channels = first.inputs[1:]
        self.form = SampleForm(augmentation.shape((height, width, channels)), pixels=True)
        self.mean, self.scale = of_pixels(self._normalise, self.attributes, channels, dtype)
        axes = None
        if augmentation.colour_shift:
            covariance = np.asarray(self.attributes.get("covariance", 0.0))
            if covariance.shape != (3, 3):
                raise BadInput(f"{first.path}: has no covariance of three colours, which data.colour_shift needs")
            axes = colour_axes(covariance, self.scale, augmentation.colour_shift)
        room = height - self.form.shape[0], width - self.form.shape[1]
        self._views = Views(augmentation, room, channels, axes, dtype)

    def _hear(self, files: list[ShardFile]) -> None:
        self.form = SampleForm((sum(self._context) + 1, files[0].inputs[-1]))
        if self._normalise in ("mean", "unit"):
            raise BadInput(
                f"data.normalise = {self._normalise}: for pixels; frames take corpus, speaker, utterance or none"
            )
        self._groups = _groups(files, self._normalise)

    def _measure(self) -> None:
        """Set what normalises frames: the stored statistics, or those of groups, for which all frames are read."""
        dims = self.shape[-1]
        if self._normalise in ("speaker", "utterance"):
            self.mean, self.scale = group_statistics(self._rows.pieces(), self.utterances, self._groups, dims)
        else:
            mean, scale = stored(self.attributes if self._normalise == "corpus" else {}, dims, np.float32)
            self.mean, self.scale = mean[None], scale[None]

    def _normalised(self, rows: Array, first: int) -> None:
        normalise_frames(rows, first, self.utterances, self._groups, self.mean, self.scale)

    def _read(self, files: list[ShardFile], window: int) -> None:
        tokens, path = sum(file.inputs[0] for file in files), files[0].path.parent
        if any(self._context):
            raise BadInput(f"data.context = {list(self._context)}: tokens have no frames; data.window is their number")
        if self._normalise not in ("corpus", "none"):
            raise BadInput(f"data.normalise = {self._normalise}: tokens are not normalised")
        if not window:
            raise BadInput(f"data.window: {path} holds tokens; say how many of them a sample has")
        if tokens <= window:
            raise BadInput(
                f"data.window = {window}: part {self.part} of {path} has {tokens:,} tokens; one more is needed"
            )
        self.samples = (tokens - 1) // window
        told = [file.small.get("bytes", np.zeros(1)) for file in files]
        nbytes = sum(int(own.sum()) for own in told) if all(own.any() for own in told) else 0
        self.form = SampleForm((window,), (window,), np.int32, nbytes / tokens)

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
            if self.kind == "tokens":
                window = self.shape[0]
                for base, rows, which, places in self._rows.spans(indices * window, (0, window)):
                    gather_tokens(rows, base, which, places, out.inputs, out.targets)
                return out
            np.take(self.targets, indices, out=out.targets, mode="clip")
            views = self._views.at(place, len(indices)) if self.kind == "images" else None
            for base, rows, which, places in self._rows.spans(indices, self._context):
                which = which.view()
                which.flags.writeable = False  # like an epoch's order: Numba would compile another type separately
                if views is None:
                    gather_windows(rows, base, self.utterances, which, places, self._context[0], out.inputs)
                else:
                    self._see_images(rows, base, which, places, views, out.inputs)
        return out

    def _see_images(
        self, rows: Array, base: int, which: Array, places: Array, views: tuple[Array, Array], out: Array
    ) -> None:
        """`gather_images`, in threads if there is enough for them to do."""
        shares = min(self._threads, len(which), 1 + len(which) * out[:1].nbytes // SHARE)

        def see(rank: int) -> None:
            part = share(len(which), rank, shares)
            gather_images(rows, base, self.mean, self.scale, which[part], places[part], *views, out)

        if shares == 1:
            see(0)
        else:
            deque(self._pool.map(see, range(shares)), maxlen=0)  # raises what a thread has raised


def _groups(files: list[ShardFile], normalise: str) -> Array:
    """The group of each utterance, whose statistics normalise it. Raises BadInput naming a shard without speakers."""
    utterances = sum(len(file.small["utterances"]) - 1 for file in files)
    if normalise == "utterance":
        return np.arange(utterances)
    if normalise != "speaker":
        return np.zeros(utterances, np.int64)
    for file in files:
        if "speakers" not in file.small:
            raise BadInput(f"{file.path}: names no speakers, and data.normalise = speaker needs them; try utterance")
    return np.unique(np.concatenate([file.small["speakers"] for file in files]), return_inverse=True)[1]


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
