"""Read a shard. Every fault of the file raises BadInput with one line that names the file."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from weakref import WeakKeyDictionary

import h5py
import numpy as np

from mpitrain.data.shards import FORMAT, attributes_digest, digest
from mpitrain.data.validation import INPUTS, KINDS, OPTIONAL, Value, validate, validate_inputs, validate_shapes
from mpitrain.errors import BadInput
from mpitrain.files import Version, checksum, version_of
from mpitrain.files.hdf5 import ERRORS, attribute, data_set, has, opened
from mpitrain.flat import Array

SHARE = 8  # of the files that a process may open, one in this many may be a shard
LEAST, MOST = 4, 4096  # bounds on the number of open shards


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn any exception that HDF5 raises on a damaged file into BadInput naming the file."""
    try:
        yield
    except BadInput:
        raise
    except FileNotFoundError as error:
        raise BadInput(f"{path}: missing") from error
    except ERRORS as error:
        text = " ".join(str(error).split())
        damaged = any(word in text for word in ("filter returned failure", "checksum"))
        reason = "damaged, a checksum does not match" if damaged else text or type(error).__name__
        raise BadInput(f"{path}: cannot be read: {reason}") from error


def most_open() -> int:
    """How many shards of a part may be open: 1/SHARE of the files that a process may open, since it reads several parts
    and MPI needs files, too."""
    allowed = getrlimit(RLIMIT_NOFILE)[0]
    return MOST if allowed == RLIM_INFINITY else min(max(allowed // SHARE, LEAST), MOST)


class ShardFile:
    """A shard whose attributes, shapes, targets and offsets have been checked; inputs are read on demand.

    It is opened when it is read, and stays open until close(), or until too many of the shards in `together` are open
    and it is the least recently read. Raises BadInput naming the file.

    `inputs` and `dtype`: shape and type of the data set of inputs. `small`: all other arrays, whole, by name. Two of
    them are also attributes: `targets`, empty for tokens; and `offsets`, where utterances or documents begin, None for
    images.
    """

    def __init__(self, path: Path, together: "OpenShards | None" = None) -> None:
        self.path, self._together = path, WeakKeyDictionary() if together is None else together
        self._file: h5py.File | None = None
        self._version: Version | None = None
        with naming(path):
            try:
                self._check(self._opened())
            except BaseException:
                self.close()
                raise

    def _opened(self) -> h5py.File:
        """The open file. Raises BadInput if it has been replaced by another one since it was checked."""
        self._together.pop(self, None)
        self._together[self] = None  # now the last one: the most recently read
        if self._file is None:
            if len(self._together) > most_open():
                next(iter(self._together)).close()
            self._file = opened(self.path)
            version = version_of(os.fstat(self._file.id.get_vfd_handle()))
            if (self._version or version) != version:
                raise BadInput(f"{self.path}: has changed while it was in use")
            self._version = version
            self._data: h5py.Dataset | None = None
        return self._file

    def _check(self, file: h5py.File) -> None:
        self.attributes: dict[str, Value] = {name: attribute(file, name) for name in file.attrs}
        if self.attributes.get("format", FORMAT) != FORMAT:
            raise BadInput(f"{self.path}: not a shard of format {FORMAT}")
        if "xxh3" in self.attributes and self.attributes["xxh3"] != attributes_digest(self.attributes):
            raise BadInput(f"{self.path}: damaged, the attributes do not match their checksum")
        self.kind = str(self.attributes.get("kind"))
        names = (name for name in KINDS.get(self.kind, ()) if name not in OPTIONAL or has(file, name))
        headers = {name: data_set(file, name) for name in names}
        for name, dataset in headers.items():
            if not dataset.fletcher32:
                raise BadInput(f"{self.path}: {name} has no checksums; write it with fletcher32")
        validate_shapes(self.path, self.kind, headers)
        self._name = INPUTS[self.kind]
        self.inputs: tuple[int, ...] = headers[self._name].shape
        self.dtype: np.dtype = headers[self._name].dtype
        self.inputs_bytes = prod(self.inputs) * self.dtype.itemsize  #: their size in memory
        self.small = {name: self.read(name) for name in headers if name != self._name}
        validate(self.path, self.kind, {**headers, **self.small}, self.attributes)
        self.classes = int(self.attributes["classes"])
        self.targets: Array = self.small.get("targets", np.empty(0, np.int32))
        self.offsets: Array | None = self.small.get("utterances", self.small.get("documents"))

    def read(self, name: str) -> Array:
        """Read a complete array, and verify its checksum."""
        with naming(self.path):
            dataset = self._opened()[name]
            array = np.empty(dataset.shape, dataset.dtype)
            if array.size:
                dataset.read_direct(array)
        self._require_digest(name, array)
        return array

    def _require_digest(self, name: str, array: Array) -> None:
        wanted = self.attributes.get(f"xxh3_{name}")
        if wanted is not None and wanted != digest(array):
            raise BadInput(f"{self.path}: damaged, {name} does not match its checksum")

    def read_inputs(self) -> Array:
        """Read and verify all inputs."""
        array = self.read(self._name)
        self.validate(array)
        return array

    def verify(self, inputs: Array) -> None:
        """Verify all inputs, which have been read by `read_rows`: their checksum, and what `validate` does."""
        self._require_digest(self._name, inputs)
        self.validate(inputs)

    def read_rows(self, start: int, stop: int, out: Array) -> None:
        """Read inputs [start, stop) into out [stop − start, ...]. Only HDF5's own checksums are verified."""
        with naming(self.path):
            file = self._opened()
            if self._data is None:
                self._data = file[self._name]
            self._data.read_direct(out, np.s_[start:stop])

    def validate(self, array: Array) -> None:
        """Refuse inputs that are not finite, or tokens that are not in range(classes)."""
        validate_inputs(self.path, self.kind, array, self.classes)

    def close(self) -> None:
        """Close the file. A later read opens it again."""
        self._together.pop(self, None)
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> "ShardFile":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


OpenShards = WeakKeyDictionary[ShardFile, None]  #: the open ones; the most recently read one is last


def digest_of(folder: Path) -> str:
    """A checksum of the arrays of all shards, from their attributes xxh3_NAME; "" if there are none. Raises BadInput
    naming a shard that cannot be read."""
    found = list[str]()
    for path in sorted(folder.glob("*.h5")):
        with naming(path), opened(path) as file:
            found += [f"{path.name} {key} {attribute(file, key)}" for key in sorted(file.attrs) if "xxh3_" in key]
    return checksum("\n".join(found)) if found else ""
