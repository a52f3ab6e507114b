"""Check that a shard can be trained on."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mpitrain.errors import BadInput
from mpitrain.flat import Array

#: A value of an attribute, and the attributes of a shard.
Value = str | int | float | np.ndarray
Attributes = Mapping[str, Value]

#: The data sets of each kind: name → (dtypes, number of axes). The first one holds the inputs. `speakers` numbers the
#: speaker of each utterance, consistently over a part's shards; `keys` are the utterances' names in UTF-8. `bytes` are
#: those of the text that a document's tokens stand for.
KINDS: dict[str, dict[str, tuple[str, int]]] = {
    "frames": {
        "features": ("float32", 2),
        "targets": ("int32", 1),
        "utterances": ("int64", 1),
        "speakers": ("int32", 1),
        "keys": ("S", 1),
    },
    "images": {"images": ("uint8", 4), "targets": ("int32", 1)},
    "tokens": {"tokens": ("uint16 or uint32", 1), "documents": ("int64", 1), "bytes": ("int64", 1)},
}
LEFT_OUT = "left_out"  #: attribute: the files that a shard lacks because they cannot be read, and why, in lines
INPUTS = {kind: next(iter(arrays)) for kind, arrays in KINDS.items()}
OPTIONAL = {"speakers", "keys", "bytes"}
CLASSES = 1 << 24  #: most classes of a corpus
USUAL = 1 << 16  #: a corpus of any size may have this many classes, and at most its number of samples beyond that
GREATEST = 1e30  # bound on features, means, standard deviations and their reciprocals, within the range of float32
UNUSABLE = f"that are not finite, or beyond ±{GREATEST:g}"  #: the end of a message on features that are not `usable`


def validate(path: Path, kind: str, arrays: Mapping[str, Array], attributes: Attributes) -> None:
    """Raise BadInput naming `path` unless the arrays and attributes make a shard that can be trained on.

    The values of the inputs are not checked here but by `validate_inputs`; they may be an unread HDF5 data set.
    """
    validate_shapes(path, kind, arrays)
    inputs = arrays[INPUTS[kind]]
    _validate_attributes(path, inputs.shape[-1], attributes)
    if not len(inputs):
        if LEFT_OUT in attributes:
            return  # none of its pictures could be read
        raise BadInput(f"{path}: no samples")
    if kind == "tokens":
        _validate_documents(path, len(inputs), arrays["documents"], arrays.get("bytes"))
        return
    targets = arrays["targets"]
    low, high, classes = int(targets.min()), int(targets.max()), int(attributes["classes"])
    if low < 0 or high >= classes:
        raise BadInput(f"{path}: targets from {low} to {high}, but there are {classes} classes")
    if kind == "frames":
        _validate_utterances(path, len(inputs), arrays["utterances"], arrays.get("speakers"), arrays.get("keys"))


def validate_shapes(path: Path, kind: str, arrays: Mapping[str, Array]) -> None:
    """Raise BadInput unless this is a kind of shards and the arrays, which may be unread, have its types and shapes."""
    if kind not in KINDS:
        raise BadInput(f"{path}: unknown kind {kind!r}; known: {', '.join(KINDS)}")
    for name, (dtype, axes) in KINDS[kind].items():
        if name not in arrays:
            if name in OPTIONAL:
                continue
            raise BadInput(f"{path}: no data set {name}")
        found, found_axes = arrays[name].dtype, len(arrays[name].shape)
        if str(found.kind if dtype == "S" else found) not in dtype.split(" or ") or found_axes != axes:
            raise BadInput(f"{path}: {name} is {found} of {found_axes} axes, not {dtype} of {axes}")
    name = INPUTS[kind]
    samples, *shape = arrays[name].shape
    if "targets" in KINDS[kind] and samples != len(arrays["targets"]):
        raise BadInput(f"{path}: {samples} samples but {len(arrays['targets'])} targets")
    if 0 in shape:
        raise BadInput(f"{path}: {name} is of shape {(samples, *shape)}: samples of no values")


def _validate_attributes(path: Path, channels: int, attributes: Attributes) -> None:
    """Raise BadInput unless `classes` and the normalisation can be used with inputs of this many channels."""
    classes = attributes.get("classes")
    if not isinstance(classes, int | np.integer) or not 1 <= classes <= CLASSES:
        raise BadInput(f"{path}: attribute classes = {classes!r}: expected a number of classes up to {CLASSES:,}")
    if ("mean" in attributes) != ("standard_deviation" in attributes):
        raise BadInput(f"{path}: attributes mean and standard_deviation come together")
    for name in {"mean", "standard_deviation"} & set(attributes):
        values = np.atleast_1d(attributes[name])
        if values.shape not in ((1,), (channels,)) or values.dtype.kind not in "fiu":
            raise BadInput(f"{path}: attribute {name} has shape {values.shape} for {channels} channels")
        least, most = (1 / GREATEST, GREATEST) if name == "standard_deviation" else (-GREATEST, GREATEST)
        if not ((least <= values) & (values <= most)).all():
            raise BadInput(f"{path}: attribute {name} holds values that cannot normalise anything")


def validate_range(source: object, classes: int, samples: int) -> None:
    """Raise BadInput if there are too many classes for a training part with this many samples.

    Otherwise a single absurd label would make an output layer that fills the memory.
    """
    if classes > max(USUAL, samples):
        raise BadInput(
            f"{source}: {classes:,} classes in a training part of {samples:,} samples; "
            f"above {USUAL:,} there may be one a sample"
        )


def _validate_utterances(path: Path, frames: int, offsets: Array, speakers: Array | None, keys: Array | None) -> None:
    """Raise BadInput unless utterances cover all frames, none is empty, and all have a speaker and a unique name
    without blanks, or none has."""
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != frames or (offsets[1:] <= offsets[:-1]).any():
        raise BadInput(f"{path}: utterances must rise from 0 to {frames} frames")
    count = len(offsets) - 1
    if speakers is not None and (len(speakers) != count or speakers.min() < 0):
        raise BadInput(f"{path}: speakers must number the speaker of each of {count} utterances from 0")
    if keys is not None:
        names = [bytes(key).decode(errors="replace") for key in keys[:]]
        readable = all(len(name.split()) == 1 and "\ufffd" not in name for name in names)
        if len(names) != count or len(set(names)) != count or not readable:
            raise BadInput(f"{path}: keys must name each of {count} utterances differently, in UTF-8 without blanks")


def _validate_documents(path: Path, tokens: int, offsets: Array, nbytes: Array | None) -> None:
    """Raise BadInput unless documents cover all tokens, and none has a negative number of bytes."""
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != tokens or (offsets[1:] < offsets[:-1]).any():
        raise BadInput(f"{path}: documents must rise from 0 to {tokens} tokens")
    if nbytes is not None and (len(nbytes) != len(offsets) - 1 or nbytes.min() < 0):
        raise BadInput(f"{path}: bytes must tell the bytes of each of {len(offsets) - 1} documents")


def usable(features: Array) -> Array:
    """For each feature, whether it is finite and so small that its mean and standard deviation can normalise it."""
    return np.abs(features) <= GREATEST


def validate_inputs(path: Path, kind: str, inputs: Array, classes: int) -> None:
    """Raise BadInput if a feature is not `usable`, or a token is not in range(classes)."""
    if not inputs.size:
        return
    if kind == "frames" and not usable(np.array([inputs.min(), inputs.max()])).all():
        raise BadInput(f"{path}: features {UNUSABLE}")
    if kind == "tokens" and (most := int(inputs.max())) >= classes:
        raise BadInput(f"{path}: a token {most}, but there are {classes} classes")
