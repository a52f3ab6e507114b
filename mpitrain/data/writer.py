"""Write a corpus of several shards, in such a way that an interrupted importer can continue.

Complete shards have provisional names (`.train-00003.h5`) until the last one is written and their number is known.
"""

from pathlib import Path

import numpy as np

from mpitrain.data.reader import ShardFile
from mpitrain.data.shards import folder_parts, shard_name, write_shard
from mpitrain.data.validation import KINDS, Attributes
from mpitrain.errors import BadInput
from mpitrain.flat import Array

LIMIT = 1 << 27  # bytes of inputs in a shard


class ShardWriter:
    """Collects utterances or images into shards of at most `limit` bytes of inputs (one utterance may be longer).

    `done`: number of utterances (kind frames) or images in complete shards of an interrupted writer with the same
    attributes; the importer skips these. Raises BadInput if the folder already holds the part.
    """

    def __init__(self, folder: Path, part: str, kind: str, attributes: Attributes, *, limit: int = LIMIT) -> None:
        shard_name(part, 0, 1)
        if any(folder.glob(f"{part}-[0-9]*-of-*.h5")) and part in folder_parts(folder):
            raise BadInput(f"{folder}: already holds a part {part}")
        self._folder, self._part, self._kind, self._limit = folder, part, kind, limit
        self._attributes = dict(attributes)
        self._inputs: list[Array] = []
        self._targets: list[Array] = []
        self._speakers: list[int] = []
        self._keys: list[str] = []
        self._bytes = self._shards = self.done = 0
        while (path := self._provisional(self._shards)).exists():
            self._resume(path)

    def add(self, inputs: Array, targets: Array, speaker: int | None = None, key: str | None = None) -> None:
        """Add one utterance (features [frames, dims]) or some images [n, h, w, c], with their targets [n].

        `speaker` is the number of an utterance's speaker, `key` the utterance's name, which `predict` writes with its
        posteriors. Each is given for all utterances of a part or for none. Raises BadInput if given for images.
        """
        if self._kind != "frames" and (speaker, key) != (None, None):
            raise BadInput(f"{self._folder}: part {self._part}: {self._kind} have no speakers or keys")
        if self._bytes and self._bytes + inputs.nbytes > self._limit:
            self._write()
        self._inputs.append(inputs)
        self._targets.append(targets)
        if speaker is not None:
            self._speakers.append(speaker)
        if key is not None:
            self._keys.append(key)
        self._bytes += inputs.nbytes

    def finish(self) -> int:
        """Write the last shard and give all shards their names; return their number. Raises BadInput without
        samples."""
        if self._inputs:
            self._write()
        if not self._shards:
            raise BadInput(f"{self._folder}: no samples for part {self._part}")
        for number in range(self._shards):
            self._provisional(number).rename(self._folder / shard_name(self._part, number, self._shards))
        return self._shards

    def _write(self) -> None:
        names = iter(KINDS[self._kind])
        arrays = {next(names): np.concatenate(self._inputs), next(names): np.concatenate(self._targets)}
        if self._kind == "frames":
            arrays["utterances"] = np.cumsum([0, *map(len, self._inputs)], dtype=np.int64)
        if self._speakers:
            arrays["speakers"] = np.array(self._speakers, np.int32)
        if self._keys:
            arrays["keys"] = np.char.encode(self._keys, "utf-8")
        write_shard(self._provisional(self._shards), self._kind, arrays, self._attributes)
        self._shards += 1
        self._inputs, self._targets, self._speakers, self._keys, self._bytes = [], [], [], [], 0

    def _provisional(self, number: int) -> Path:
        return self._folder / f".{self._part}-{number:05d}.h5"

    def _resume(self, path: Path) -> None:
        with ShardFile(path) as file:
            for name, value in self._attributes.items():
                if not np.array_equal(np.asarray(file.attributes.get(name)), value):
                    raise BadInput(f"{path}: left by a writer with another {name}; delete it to start over")
            self.done += file.inputs[0] if file.utterances is None else len(file.utterances) - 1
        self._shards += 1
