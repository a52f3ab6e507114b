"""Reading a shard: every fault of the file becomes one BadInput line that names it."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from mpitrain.data.shards import FORMAT, attributes_digest, digest
from mpitrain.data.validation import KINDS, OPTIONAL, validate, validate_finite
from mpitrain.errors import BadInput
from mpitrain.flat import Array


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn whatever a damaged file makes HDF5 raise into BadInput with the file's name."""
    try:
        yield
    except BadInput:
        raise
    except FileNotFoundError as error:
        raise BadInput(f"{path}: missing") from error
    except (OSError, KeyError, ValueError, TypeError, RuntimeError, MemoryError) as error:
        text = " ".join(str(error).split())
        damaged = any(word in text for word in ("filter returned failure", "checksum"))
        reason = "damaged, a checksum does not match" if damaged else text or type(error).__name__
        raise BadInput(f"{path}: cannot be read: {reason}") from error


class Shard(NamedTuple):
    """A whole shard in memory."""

    kind: str
    arrays: dict[str, Array]
    attributes: dict[str, Any]


class ShardFile:
    """An open shard whose attributes, shapes, targets and offsets have been checked; inputs are read on demand.

    `inputs`: shape of the data set of inputs. `targets`, `utterances` (None for images), `speakers` and `keys`
    (None where they are not known): whole arrays. Raises BadInput naming the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with naming(path):
            self._file = h5py.File(path, "r")
            try:
                self._check()
            except BaseException:
                self.close()
                raise

    def _check(self) -> None:
        self.attributes = {name: _plain(value) for name, value in self._file.attrs.items()}
        if self.attributes.get("format", FORMAT) != FORMAT:
            raise BadInput(f"{self.path}: not a shard of format {FORMAT}")
        if "xxh3" in self.attributes and self.attributes["xxh3"] != attributes_digest(self.attributes):
            raise BadInput(f"{self.path}: damaged, the attributes do not match their checksum")
        self.kind = str(self.attributes.get("kind"))
        if self.kind not in KINDS:
            raise BadInput(f"{self.path}: unknown kind {self.kind!r}; known: {', '.join(KINDS)}")
        headers = {name: self._file[name] for name in KINDS[self.kind]}
        headers |= {name: self._file[name] for name in OPTIONAL[self.kind] if name in self._file}
        for name, dataset in headers.items():
            if not isinstance(dataset, h5py.Dataset) or not dataset.fletcher32:
                raise BadInput(f"{self.path}: {name} has no checksums; write it with fletcher32")
        self._inputs = headers[next(iter(headers))]
        self.inputs: tuple[int, ...] = self._inputs.shape
        self.targets = self.read("targets")
        self.utterances = self.read("utterances") if self.kind == "frames" else None
        self.speakers = self.read("speakers") if "speakers" in headers else None
        self.keys = self.read("keys") if "keys" in headers else None
        validate(self.path, self.kind, {**headers, **self.small()}, self.attributes)

    def small(self) -> dict[str, Array]:
        """The arrays that are in memory: all but the inputs."""
        arrays = {"targets": self.targets, "utterances": self.utterances, "speakers": self.speakers, "keys": self.keys}
        return {name: array for name, array in arrays.items() if array is not None}

    @property
    def inputs_bytes(self) -> int:
        """Size of the inputs in memory."""
        return prod(self.inputs) * self._inputs.dtype.itemsize

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.attributes["classes"])

    def read(self, name: str, out: Array | None = None) -> Array:
        """A whole array, into `out` when given, its checksum verified."""
        with naming(self.path):
            dataset = self._file[name]
            array = np.empty(dataset.shape, dataset.dtype) if out is None else out
            if array.size:
                dataset.read_direct(array)
            wanted = self.attributes.get(f"xxh3_{name}")
            if wanted is not None and wanted != digest(array):
                raise BadInput(f"{self.path}: damaged, {name} does not match its checksum")
            return array

    def read_inputs(self, out: Array | None = None) -> Array:
        """All inputs, verified and finite."""
        array = self.read(self._inputs.name[1:], out)
        self._finite(array)
        return array

    def read_rows(self, start: int, stop: int, out: Array) -> None:
        """Inputs [start, stop) into out [stop − start, ...]. Only HDF5's checksums guard these."""
        with naming(self.path):
            self._inputs.read_direct(out, np.s_[start:stop])
            self._finite(out)

    def _finite(self, array: Array) -> None:
        if self.kind == "frames":
            validate_finite(self.path, array)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "ShardFile":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_shard(path: Path) -> Shard:
    """A whole shard, every checksum verified. Raises BadInput naming the file."""
    with ShardFile(path) as file:
        name = next(iter(KINDS[file.kind]))
        return Shard(file.kind, {name: file.read_inputs(), **file.small()}, file.attributes)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if isinstance(value, np.generic) else value
