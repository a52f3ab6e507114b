"""Data sets of the user's own, read as parts like those of shards.

A part is a pair of arrays, inputs and targets, or a data set in PyTorch's sense: any object with `__len__` and
`__getitem__`, whose items are pairs of an input and a target. Floats become the run's dtype, whole numbers int32.
"""

from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
import xxhash

from mpitrain.data.sharing import Sharing, held_once
from mpitrain.errors import BadInput, blaming
from mpitrain.flat import Array
from mpitrain.sampling.batch import Batch, Place, SampleForm

DATASET = "samples"  #: of a kind that is neither frames, images nor tokens
WHOLE = np.iinfo(np.int32)
LONGEST = 1 << 32  #: most samples of a data set: an epoch's order, of 8 bytes a sample, is made in memory


class OwnPart:
    """The part `part` of the user's data, `given` for it: `samples` of a `form`, with targets in range(`classes`)
    unless that is 0. Arrays are `in_memory`, in `held_bytes` bytes; samples of data sets are read one by one.

    Raises BadInput with `name`, where the data are from, and the sample that cannot be used.
    """

    kind = DATASET

    def __init__(self, name: str, part: str, given: object, classes: int, dtype: np.dtype | str) -> None:
        self.part, self.classes, self._name, self._lock = part, classes, name, Lock()
        where = f"{name}: part {part}"
        self._arrays = arrays_of(given, where)
        self.in_memory = self._arrays is not None
        if self._arrays is not None:
            self._arrays = Batch(*(_converted(array, dtype, where) for array in self._arrays))
            self.samples, first = len(self._arrays.targets), Batch(*(np.array(array[0]) for array in self._arrays))
        else:
            if not (hasattr(given, "__len__") and hasattr(given, "__getitem__")) or isinstance(given, dict | str):
                found = type(given).__name__
                raise BadInput(f"{where}: is {found}: neither a pair of arrays nor a data set with a length")
            self._given: Any = given
            with blaming(name, f"len of part {part}"):
                self.samples = len(self._given)
            if self.samples < 1:
                raise BadInput(f"{where} has no samples")
            if self.samples > LONGEST:
                raise BadInput(f"{where} has {self.samples:,} samples, at most {LONGEST:,} can be put in order")
            first = Batch(*(_converted(array, dtype, self._called(0)) for array in self._sample(0)))
        if not first.targets.size:
            raise BadInput(f"{self._called(0)}: its targets have the shape {list(first.targets.shape)}: no numbers")
        if self._arrays is not None:
            self._check(self._arrays, range(self.samples))
        kinds = [None if array.dtype.kind == "f" else np.int32 for array in first]
        self.form = SampleForm(first.inputs.shape, first.targets.shape, kinds[0], target_dtype=kinds[1])
        self.shape, self._first = self.form.shape, first
        self.held_bytes = sum(array.nbytes for array in self._arrays or ())

    def hold(self, sharing: Sharing, partly: bool = False) -> None:
        """Keep one copy of arrays, complete whatever `partly` says, for all processes of `sharing`. Collective."""
        if self._arrays is not None:
            self._arrays = Batch(*(held_once(array, sharing) for array in self._arrays))

    def identity(self) -> str:
        """A checksum by which ranks compare their copies: of all targets and the first input, or the first sample."""
        compared = self._first if self._arrays is None else (self._arrays.targets, self._first.inputs)
        return xxhash.xxh3_64_hexdigest(b"".join(np.ascontiguousarray(array).tobytes() for array in compared))

    def gather(self, indices: Array, out: Batch, place: Place = None) -> Batch:
        """Fill `out`, which has room for n samples, with those of `indices` int64 [n], in that order; return it.

        Raises IndexError for an index outside range(samples), BadInput naming a sample that raises or does not fit.
        """
        if not len(indices):
            return out
        if indices.min() < 0 or indices.max() >= self.samples:
            raise IndexError(f"samples {indices.min()} to {indices.max()} of {self.samples}")
        if self._arrays is not None:
            for array, room in zip(self._arrays, out, strict=True):
                np.take(array, indices, axis=0, out=room, mode="clip")
            return out
        with self._lock:  # a thread may read ahead while an evaluation reads the same part
            for row, index in enumerate(indices.tolist()):
                self._put(index, row, out)
        self._check(out, indices)
        return out

    def _put(self, index: int, row: int, out: Batch) -> None:
        for what, array, room in zip(Batch._fields, self._sample(index), out, strict=True):
            if array.shape != room.shape[1:]:
                raise BadInput(
                    f"{self._called(index)}: its {what} have the shape {list(array.shape)}, those of the first sample "
                    f"{list(room.shape[1:])}"
                )
            if (array.dtype.kind == "f") != (room.dtype.kind == "f"):
                raise BadInput(f"{self._called(index)}: its {what} are {array.dtype}, those of the first sample not")
            room[row] = _converted(array, room.dtype, self._called(index))

    def _sample(self, index: int) -> Batch:
        """A sample of a data set as arrays, not yet converted to the run's dtypes."""
        with blaming(self._called(index), "cannot be read"):
            item = self._given[index]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise BadInput(f"{self._called(index)}: is {type(item).__name__}, not a pair of an input and a target")
        return Batch(*(as_array(each, self._called(index)) for each in item))

    def _called(self, index: int) -> str:
        return f"{self._name}: sample {index} of part {self.part}"

    def _check(self, samples: Batch, indices: Sequence[int] | Array) -> None:
        """Raise BadInput for numbers that are not finite, and for targets that are not classes."""
        for what, array in zip(Batch._fields, samples, strict=True):
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                bad = ~np.isfinite(array).reshape(len(array), -1).all(axis=1)
                raise BadInput(f"{self._called(indices[int(bad.argmax())])}: its {what} are not finite")
        targets = samples.targets.reshape(len(samples.targets), -1)
        if self.classes and targets.dtype.kind != "f" and (targets.min() < 0 or targets.max() >= self.classes):
            bad = ((targets < 0) | (targets >= self.classes)).any(axis=1)
            row = int(bad.argmax())
            raise BadInput(
                f"{self._called(indices[row])}: the target {targets[row].tolist()} is not in range({self.classes})"
            )


def arrays_of(given: object, name: str) -> Batch | None:
    """The arrays of a part or of a TensorDataset; None for another data set. Raises BadInput for unusable arrays."""
    given = getattr(given, "tensors", given)
    if not (isinstance(given, tuple | list) and len(given) == 2 and all(hasattr(each, "shape") for each in given)):
        return None
    inputs, targets = (as_array(each, name) for each in given)
    if not inputs.ndim or inputs.shape[:1] != targets.shape[:1]:
        raise BadInput(f"{name}: inputs {list(inputs.shape)} and targets {list(targets.shape)} differ in their number")
    if not len(inputs):
        raise BadInput(f"{name} has no samples")
    return Batch(inputs, targets)


def classes_of(given: object, name: str) -> int:
    """The number of classes of a data set: by its `classes`, which torchvision's have, by its `targets` or by those of
    its arrays; for a Subset, by those of the data set from which it was made. 0 if not known."""
    while given is not None:
        classes: Any = getattr(given, "classes", None)
        if isinstance(classes, int) or hasattr(classes, "__len__"):
            return classes if isinstance(classes, int) else len(classes)
        arrays = arrays_of(given, name)
        targets = getattr(given, "targets", None) if arrays is None else arrays.targets
        if targets is not None:
            told = as_array(targets, name)
            return int(told.max()) + 1 if told.size and told.dtype.kind in "iub" and told.min() >= 0 else 0
        given = getattr(given, "dataset", None)
    return 0


def as_array(value: Any, name: str) -> Array:
    """An array, a tensor, a picture or a number as a NumPy array of numbers. Raises BadInput for anything else."""
    with blaming(name, "is no array"):
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            value = value.float() if value.is_floating_point() and value.element_size() == 2 else value
        array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        found = str(value.dtype) if hasattr(value, "dtype") else type(value).__name__
        raise BadInput(f"{name}: holds {found}, where numbers, arrays or tensors of numbers are wanted")
    return array


def _converted(array: Array, dtype: np.dtype | str, name: str) -> Array:
    """An array of floats in `dtype`, or in float32 if `dtype` is not for floats; an array of whole numbers in int32.
    Raises BadInput for numbers beyond int32."""
    if array.dtype.kind == "f":
        return np.asarray(array, dtype if np.dtype(dtype).kind == "f" else np.float32)
    if array.size and (int(array.min()) < WHOLE.min or int(array.max()) > WHOLE.max):
        raise BadInput(f"{name}: holds whole numbers beyond int32")
    return np.asarray(array, np.int32)
