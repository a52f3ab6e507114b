"""What a run was trained on, stored in its folder as corpus.json, so that the network can be used without the data.

Other data can be an input of the network only if they agree with it in kind, shape and classes, and, where both sides
have them, in the names of the classes and the preparation.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from mpitrain.data.normalising import NORMALISING
from mpitrain.data.reader import ShardFile
from mpitrain.data.shards import class_names, part_shards, preparation
from mpitrain.errors import BadInput
from mpitrain.files import Record, read_whole, sealed_json, unsealed_json
from mpitrain.flat import Array

NAME = "corpus.json"


class Origin(msgspec.Struct, frozen=True):
    """The training part: the `shape` of a sample in the shards ([dims] of frames, [h, w, c] of images), the number of
    samples of each class, the mean and standard deviation for normalisation if it has them, and, if known, the names of
    the classes and how the data were prepared and are read. For tokens, `tokens` is their number, and there are no
    `class_counts`; for the user's own data sets, `samples` counts samples, `targets` is the shape of a target, and
    `dtypes` says whether inputs and targets are "float" or "int32".
    `folder`: the absolute path of the shards, `digest` a checksum of all of them, test parts included."""

    kind: str
    shape: list[int]
    classes: int
    class_counts: list[int]
    mean: list[float] | None = None
    standard_deviation: list[float] | None = None
    folder: str | None = None
    class_names: list[str] | None = None
    preparation: Record = {}
    tokens: int = 0
    samples: int = 0
    targets: list[int] = []
    dtypes: list[str] = []
    digest: str = ""

    @property
    def statistics(self) -> dict[str, Array]:
        """The mean and standard deviation, under their names in the shards."""
        if self.mean is None or self.standard_deviation is None:
            return {}
        return {"mean": np.array(self.mean), "standard_deviation": np.array(self.standard_deviation)}

    def require(self, other: "Origin", path: str, part: str) -> None:
        """Raise BadInput if `other`, the part `part` of the data at `path`, cannot be the input of a network trained
        on this."""
        for found, wanted in self._differences(other):
            raise BadInput(f"{path}: part {part}{found}, the network was trained on {wanted}")

    def _differences(self, other: "Origin") -> Iterator[tuple[str, str]]:
        """The differences in words: what `other` has, and what it should have."""
        if other.kind != self.kind:
            yield f" holds {other.kind}", self.kind
        if other.shape != self.shape:
            found, wanted = (" x ".join(map(str, shape)) for shape in (other.shape, self.shape))
            unit = {"frames": "features", "images": "pixels"}.get(self.kind, "numbers")
            yield f" has {found} {unit}", wanted
        if (other.targets, other.dtypes) != (self.targets, self.dtypes):
            text = "inputs of {} and targets {} of {}"
            found, wanted = (text.format(each.dtypes[0], each.targets, each.dtypes[-1]) for each in (other, self))
            yield f" has {found}", wanted
        if other.classes != self.classes:
            yield f" has {other.classes} classes", str(self.classes)
        names = zip(other.class_names or (), self.class_names or (), strict=False)
        for number, (found, wanted) in enumerate(names):
            if found != wanted:
                yield f": class {number} is called {found}", wanted
        for key in sorted(set(other.preparation) & set(self.preparation)):
            values = other.preparation[key], self.preparation[key]
            if values[0] != values[1]:
                found, wanted = (value if isinstance(value, str) else json.dumps(value) for value in values)
                yield f": {key} = {found}", wanted

    def continued(self, now: "Origin") -> "Origin":
        """The origin after a resume with the shards of `now`: `now` with this one's statistics, by which the network's
        inputs stay normalised, and with this one's names and preparation where `now` has none."""
        return replace(
            now,
            mean=self.mean,
            standard_deviation=self.standard_deviation,
            class_names=now.class_names or self.class_names,
            preparation={**self.preparation, **now.preparation},
        )


def of_part(path: Path, part: str = "train") -> Origin:
    """The origin as described by the shards of a part. Raises BadInput naming the folder or the shard."""
    counts, tokens = list[Array](), 0
    for shard in part_shards(path, part):
        with ShardFile(shard) as file:
            kind, classes, attributes = file.kind, file.classes, file.attributes
            shape = file.inputs[1:]
            if kind == "tokens":
                tokens += file.inputs[0]
            else:
                counts.append(np.bincount(file.targets, minlength=classes))
    statistics = {name: np.atleast_1d(attributes[name]).tolist() for name in NORMALISING if name in attributes}
    try:
        folder = str(path.absolute()).encode().decode()
    except UnicodeEncodeError:  # JSON cannot hold it: without it, only a relative data.path leads there
        folder = None
    return Origin(
        kind,
        list(shape),
        classes,
        np.sum(counts, axis=0).tolist() if counts else [],
        **statistics,
        folder=folder,
        class_names=class_names(attributes),
        preparation=preparation(attributes),
        tokens=tokens,
    )


def text(origin: Origin) -> str:
    """The content of corpus.json, with its checksum."""
    return sealed_json(msgspec.to_builtins(origin))


def read(run: Path) -> Origin | None:
    """The origin in a run folder, None where it has no corpus.json. Raises BadInput naming the file."""
    path = run / NAME
    try:
        return msgspec.convert(unsealed_json(read_whole(path)), Origin)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: {error}; remove it, and a resume writes it anew") from error


def class_counts(run: Path) -> list[int]:
    """How many samples of each class the run was trained on; [] where that cannot be known."""
    try:
        found = read(run)
    except BadInput:
        return []
    return found.class_counts if found is not None else []
