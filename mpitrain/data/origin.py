"""What a run was trained on, stored in its folder as corpus.json, so that the network can be used without the data.

Other data can be an input of the network only if they agree with it in kind, shape and classes, and, where both sides
have them, in the names of the classes and the preparation.
"""

import json
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from mpitrain.data.described import class_names, names_apart, preparation, preparations_apart
from mpitrain.data.reader import ShardFile
from mpitrain.data.shards import folder_parts
from mpitrain.errors import BadInput
from mpitrain.files import Record, checksum, read_whole
from mpitrain.flat import Array

NAME, CHECKSUM = "corpus.json", "xxh3"


class Origin(msgspec.Struct, frozen=True):
    """The training part: the `shape` of a sample in the shards ([dims] of frames, [h, w, c] of images), the number of
    samples of each class, the mean and standard deviation for normalisation if it has them, and, if known, the names of
    the classes and how the data were prepared and are read. `folder`: the absolute path of the shards."""

    kind: str
    shape: list[int]
    classes: int
    class_counts: list[int]
    mean: list[float] | None = None
    standard_deviation: list[float] | None = None
    folder: str | None = None
    class_names: list[str] | None = None
    preparation: Record = {}

    @property
    def statistics(self) -> dict[str, Array]:
        """The mean and standard deviation, under their names in the shards."""
        if self.mean is None or self.standard_deviation is None:
            return {}
        return {"mean": np.array(self.mean), "standard_deviation": np.array(self.standard_deviation)}

    def require(self, path: Path, part: str) -> None:
        """Raise BadInput naming the folder if its part cannot be an input of a network that was trained on this."""
        self.require_like(of_part(path, part), path, part)

    def require_like(self, other: "Origin", path: Path, part: str) -> None:
        """Like `require`, for a part that has been read already."""
        if other.kind != self.kind:
            raise BadInput(f"{path}: part {part} holds {other.kind}, the network was trained on {self.kind}")
        if other.shape != self.shape:
            found, wanted = (" x ".join(map(str, shape)) for shape in (other.shape, self.shape))
            unit = "features" if self.kind == "frames" else "pixels"
            raise BadInput(f"{path}: part {part} has {found} {unit}, the network was trained on {wanted}")
        if other.classes != self.classes:
            raise BadInput(
                f"{path}: part {part} has {other.classes} classes, the network was trained on {self.classes}"
            )
        names = names_apart(other.class_names, self.class_names)
        if apart := names or preparations_apart(other.preparation, self.preparation):
            raise BadInput(f"{path}: part {part}: {apart}")

    def continued(self, now: "Origin") -> "Origin":
        """`now`, with names and preparation taken from this where `now` lacks them, for a resume with other shards."""
        return replace(
            now, class_names=now.class_names or self.class_names, preparation={**self.preparation, **now.preparation}
        )


def of_part(path: Path, part: str = "train") -> Origin:
    """The origin as described by the shards of a part. Raises BadInput naming the folder or the shard."""
    found = folder_parts(path)
    if part not in found:
        raise BadInput(f"{path}: has no part {part}, only {', '.join(found)}")
    counts: list[Array] = []
    for shard in found[part]:
        with ShardFile(shard) as file:
            kind, classes, attributes = file.kind, file.classes, file.attributes
            shape = file.inputs[1:]
            counts.append(np.bincount(file.targets, minlength=classes))
    statistics = {
        name: np.atleast_1d(attributes[name]).tolist() for name in ("mean", "standard_deviation") if name in attributes
    }
    return Origin(
        kind,
        list(shape),
        classes,
        np.sum(counts, axis=0).tolist(),
        **statistics,
        folder=_in_utf_8(path.absolute()),
        class_names=class_names(attributes),
        preparation=preparation(attributes),
    )


def _in_utf_8(path: Path) -> str | None:
    """A path as JSON can hold it; None for one of other bytes, which only a relative data.path then leads to."""
    try:
        return str(path).encode().decode()
    except UnicodeEncodeError:
        return None


def text(origin: Origin) -> str:
    """The content of corpus.json, with its checksum."""
    fields = msgspec.to_builtins(origin)
    return json.dumps({**fields, CHECKSUM: checksum(json.dumps(fields))}) + "\n"


def read(run: Path) -> Origin | None:
    """The record in a run folder, None where there is none. Raises BadInput naming the file."""
    path = run / NAME
    try:
        fields = msgspec.json.decode(read_whole(path), type=Record)
        if fields.pop(CHECKSUM, None) != checksum(json.dumps(fields)):
            raise BadInput(f"{path}: does not match its checksum; remove it, and a resume writes it anew")
        return msgspec.convert(fields, Origin)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: {error}; remove it, and a resume writes it anew") from error
