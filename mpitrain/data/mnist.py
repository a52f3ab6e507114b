"""MNIST and data sets in its format, such as Fashion-MNIST: a folder of four IDX files, gzipped or not."""

from functools import partial
from pathlib import Path

import numpy as np

from mpitrain.data.idx import read_idx
from mpitrain.data.plan import Plan
from mpitrain.errors import BadInput
from mpitrain.flat import Array

NAMES = {"train": "train", "test": "t10k"}


def plan(folder: Path, classes: int = 10) -> Plan:
    """The plan for a folder with `train-images-idx3-ubyte` and the other three files. Raises BadInput naming a missing
    one."""
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder")
    chunks = {
        part: [(_found(folder, name, "images", 3), _found(folder, name, "labels", 1))] for part, name in NAMES.items()
    }
    attributes = {"source": f"IDX files of {folder.resolve().name}", "classes": classes}
    return Plan("images", attributes, chunks, partial(_part, classes))


def _found(folder: Path, name: str, what: str, axes: int) -> Path:
    """The path of the file under its published name, or with a dot in it, as some programs unpack it."""
    published = f"{name}-{what}-idx{axes}-ubyte"
    for form in (published, published.replace("-idx", ".idx")):
        for path in (folder / form, folder / f"{form}.gz"):
            if path.is_file():
                return path
    raise BadInput(f"{folder}: has neither {published} nor {published}.gz")


def _part(classes: int, paths: tuple[Path, Path]) -> dict[str, Array]:
    """The arrays of a part, which is a single shard."""
    images, labels = read_idx(paths[0], 3), read_idx(paths[1], 1)
    if len(images) != len(labels):
        raise BadInput(f"{paths[1]}: {len(labels):,} labels for the {len(images):,} images of {paths[0].name}")
    if not images.size:
        raise BadInput(f"{paths[0]}: no images")
    if labels.max() >= classes:
        raise BadInput(f"{paths[1]}: a label {labels.max()}, but there are {classes} classes")
    return {"images": images[..., None], "targets": labels.astype(np.int32)}
