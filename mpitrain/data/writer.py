"""Write a part of several shards by a script that may be interrupted and run again.

Shards have provisional names (`.train-00003.h5`) until the last one is written and their number is known. A script that
is run again adds everything again: what was left under provisional names is written anew, and shards of a part that was
complete are compared with what is added. So each sample is there once, wherever the script was interrupted. Before they
get their names, the shards of a training part are given its mean and standard deviation.
"""

from pathlib import Path

import numpy as np

from mpitrain.data import shards
from mpitrain.data.normalising import STATISTICS, moments, statistics
from mpitrain.data.reader import ShardFile
from mpitrain.data.validation import INPUTS, Attributes
from mpitrain.errors import BadInput
from mpitrain.flat import Array

LIMIT = 1 << 27  # bytes of inputs in a shard


class ShardWriter:
    """Collects utterances, images or documents into shards of at most `limit` bytes of inputs; one utterance or
    document may be longer.

    `attributes` are those of every shard. A part "train" of frames or images also gets its mean and standard deviation,
    of images the covariance, too, unless `attributes` hold any of these. Shards of this part that have their final
    names already are kept as they are if they hold what is added. Raises BadInput naming one with other attributes;
    `add` and `finish` raise it naming one with other samples.
    """

    def __init__(self, folder: Path | str, part: str, kind: str, attributes: Attributes, *, limit: int = LIMIT) -> None:
        shards.require_part(part, part)
        folder = Path(folder)
        self._folder, self._part, self._kind, self._limit = folder, part, kind, limit
        self._attributes = dict(attributes)
        for name, value in attributes.items():
            if not isinstance(value, str) and np.asarray(value).dtype.kind not in "biufS":
                raise BadInput(f"{folder}: attribute {name} = {value!r}: expected a text, a number or numbers")
        self._complete = sorted(folder.glob(f"{part}-{shards.DIGITS}-of-{shards.DIGITS}.h5"))
        self._added: list[tuple[Array, Array | None, int | None, str | None]] = []  # of the next shard
        self._shape: tuple[int, ...] = ()  # of each sample
        self._bytes = self._shards = 0
        self._moments: list[Attributes] = []  # of each shard
        self._measures = part == "train" and kind != "tokens" and not attributes.keys() & set(STATISTICS)
        for path in self._complete:
            with ShardFile(path) as file:
                for name, value in {**self._attributes, "kind": kind}.items():
                    if not np.array_equal(np.asarray(file.attributes.get(name)), value):
                        raise _complete_with(f"another {name}", path)
                self._measures &= "mean" in file.attributes  # else only the new shards would have statistics

    def add(
        self, inputs: Array, targets: Array | None = None, speaker: int | None = None, key: str | None = None
    ) -> None:
        """Add one utterance (features [frames, dims]) or some images [n, h, w, c], with their targets [n]; or a
        document (tokens uint16 or uint32 [n]), which has none.

        `speaker` is the number of an utterance's speaker, `key` the utterance's name, which `predict` writes with its
        posteriors. Each is given for all utterances of a part or for none. Raises BadInput if given for images or
        documents, for a wrong number of targets, and for another shape of samples than before. The arrays are copied,
        so that their memory may be filled anew.
        """
        if self._kind != "frames" and (speaker, key) != (None, None):
            raise BadInput(f"{self._folder}: part {self._part}: {self._kind} have no speakers or keys")
        if (targets is None) != (self._kind == "tokens"):
            wanted = "no targets" if self._kind == "tokens" else "targets"
            raise BadInput(f"{self._folder}: part {self._part}: {self._kind} have {wanted}")
        inputs, targets = np.array(inputs), None if targets is None else np.array(targets)
        if targets is not None and inputs.shape[:1] != targets.shape[:1]:
            shapes = f"{list(inputs.shape)} with targets {list(targets.shape)}"
            raise BadInput(f"{self._folder}: part {self._part}: {self._kind} {shapes}, which differ in their number")
        self._shape = self._shape or inputs.shape[1:]
        if inputs.shape[1:] != self._shape:
            before = f"those before are {list(self._shape)} each"
            raise BadInput(f"{self._folder}: part {self._part}: {self._kind} {list(inputs.shape)}; {before}")
        if self._bytes and self._bytes + inputs.nbytes > self._limit:
            self._write()
        self._added.append((inputs, targets, speaker, key))
        self._bytes += inputs.nbytes

    def finish(self) -> int:
        """Write the last shard and name all shards; return their number. Raises BadInput if there are no samples."""
        if self._added:
            self._write()
        if not self._shards:
            raise BadInput(f"{self._folder}: no samples for part {self._part}")
        names = [shards.shard_name(self._part, number, self._shards) for number in range(self._shards)]
        for path in self._complete:
            if path.name not in names:
                raise _complete_with("other samples", path)
        if self._measures:
            found = statistics(self._moments)
            for number, name in enumerate(names):
                if not (self._folder / name).exists():
                    shards.set_attributes(self._folder / shards.provisional_name(self._part, number), found)
        shards.publish(self._folder, {self._part: self._shards}, self._part)
        return self._shards

    def _write(self) -> None:
        inputs, *others = zip(*self._added, strict=True)
        targets, speakers, keys = ([value for value in column if value is not None] for column in others)
        if self._kind == "frames":
            arrays = shards.utterance_arrays(inputs, targets, speakers, keys)
        elif self._kind == "tokens":
            arrays = shards.document_arrays(inputs)
        else:
            arrays = {"images": np.concatenate(inputs), "targets": np.concatenate(targets)}
        complete = [path for path in self._complete if path.name.startswith(f"{self._part}-{self._shards:05d}-")]
        for path in complete:
            _require_samples(path, arrays)
        if not complete:
            path = self._folder / shards.provisional_name(self._part, self._shards)
            shards.write_shard(path, self._kind, arrays, self._attributes)
        if self._measures:
            self._moments.append(moments(arrays[INPUTS[self._kind]]))
        self._shards += 1
        self._added, self._bytes = [], 0


def _require_samples(path: Path, arrays: dict[str, Array]) -> None:
    with ShardFile(path) as file:
        found = {name: value for name, value in file.attributes.items() if name.startswith("xxh3_")}
    if found != {f"xxh3_{name}": shards.digest(array) for name, array in arrays.items()}:
        raise _complete_with("other samples", path)


def _complete_with(other: str, path: Path) -> BadInput:
    return BadInput(f"{path}: complete, with {other}; name another folder, or delete this part")
