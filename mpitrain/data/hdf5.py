"""Read data sets of untrusted HDF5 files: only values that are stored in the file itself.

HDF5 follows links, virtual data sets and external storage into any file that the process may open, and fills in values
that were never stored, so that a file of a few kilobytes can fill the memory.
"""

from math import prod

import h5py

EXPANSION = 1032  # deflate expands one byte to at most this many
LARGEST_CHUNK = 1 << 28  # bytes: HDF5 holds a whole chunk in memory
HOPS = 16  # most soft links to follow to a data set


def data_set(file: h5py.File, name: str) -> h5py.Dataset:
    """The data set of that name. Raises KeyError if there is none, ValueError if it may not be read, saying why."""
    found = file[_hard_path(file, name)]
    if not isinstance(found, h5py.Dataset):
        raise KeyError(f"{name} is not a data set")
    if found.is_virtual or found.external:
        raise ValueError(f"the values of {name} lie in other files")
    if found.shape is None:
        raise ValueError(f"{name} has no values")
    _require_stored(found, name, file.id.get_filesize())
    return found


def has(group: h5py.Group, name: str) -> bool:
    """Whether the group has a link of that name, whatever its target."""
    return bool(group.id.links.exists(name.encode()))


def _hard_path(file: h5py.File, name: str) -> str:
    """The path with soft links resolved. Raises ValueError for a link that leaves the file or is circular."""
    left, path, hops = name.split("/")[::-1], "", 0
    while left:
        if (step := left.pop()) in ("", "."):
            continue
        group = file[path or "/"]
        if not isinstance(group, h5py.Group) or not has(group, step):
            raise KeyError(f"no data set {name}")
        kind = group.id.links.get_info(step.encode()).type
        if kind == h5py.h5l.TYPE_HARD:
            path += f"/{step}"
            continue
        if kind != h5py.h5l.TYPE_SOFT:
            raise ValueError(f"{name} is a link into another file")
        if (hops := hops + 1) > HOPS:
            raise ValueError(f"{name} is a link that does not end")
        to = group.id.links.get_val(step.encode()).decode()
        path = "" if to.startswith("/") else path
        left += to.split("/")[::-1]
    return path or "/"


def _require_stored(found: h5py.Dataset, name: str, file_bytes: int) -> None:
    """Raise ValueError unless the file is large enough to store all values of the data set."""
    values, stored = prod(found.shape) * found.dtype.itemsize, found.id.get_storage_size()
    told = f"{name} would take {values:,} bytes, the file holds {stored:,} for it"
    if stored > file_bytes or values > stored * (EXPANSION if found.chunks else 1):
        raise ValueError(told)
    if not found.chunks:
        return
    if (chunk := prod(found.chunks) * found.dtype.itemsize) > LARGEST_CHUNK:
        raise ValueError(f"{name} is stored in chunks of {chunk:,} bytes, at most {LARGEST_CHUNK:,} can be read")
    wanted = prod(-(-size // side) for size, side in zip(found.shape, found.chunks, strict=True))
    if wanted > file_bytes or found.id.get_num_chunks() < wanted:
        raise ValueError(f"{told}: chunks are missing")
