"""Read untrusted HDF5 files: only values that are stored in the file itself. No other module opens one to read.

HDF5 follows links, virtual data sets and external storage into any file that the process may open, and fills in values
that were never stored, so that a file of a few kilobytes can fill the memory.
"""

from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpitrain.files import regular_status

#: What h5py raises for a damaged file.
ERRORS = (OSError, KeyError, ValueError, TypeError, RuntimeError, MemoryError)
EXPANSION = 1032  # deflate expands one byte to at most this many
LARGEST_CHUNK = 1 << 28  # bytes: HDF5 holds a whole chunk in memory
#: Bytes of each data set's chunk cache: the largest chunk that h5py chooses. By default 8 MiB, 8 GB for 1000 shards.
CACHE = 1 << 20
HOPS = 16  # most soft links to follow to a data set
DEPTH, MOST = 32, 1 << 20  # most levels of groups, and most links in a file


def opened(path: Path) -> h5py.File:
    """Open a regular file for reading. The returned file is a context that closes it. Raises one of ERRORS."""
    regular_status(path)
    return h5py.File(path, "r", rdcc_nbytes=CACHE)


def data_set(file: h5py.File, name: str, expansion: int = EXPANSION) -> h5py.Dataset:
    """The data set of that name, whose values are at most `expansion` times as large as what is stored of them.

    Raises KeyError if there is none, ValueError if it may not be read, saying why.
    """
    found = file[_hard_path(file, name)]
    if not isinstance(found, h5py.Dataset):
        raise KeyError(f"{name} is not a data set")
    if found.is_virtual or found.external:
        raise ValueError(f"the values of {name} lie in other files")
    if found.shape is None:
        raise ValueError(f"{name} has no values")
    _require_filters(found, name)
    _require_stored(found, name, file.id.get_filesize(), expansion)
    return found


def has(group: h5py.Group, name: str) -> bool:
    """Whether the group has a link of that name, whatever its target."""
    return bool(group.id.links.exists(name.encode()))


def names(file: h5py.File, below: str = "") -> list[str]:
    """The data sets of a group and of the groups in it, as group/name, sorted. Links other than hard ones are left out.
    Raises KeyError if there is no such group, ValueError for more than DEPTH levels or MOST links."""
    found, left, seen = list[str](), [("", 0)], 0
    while left:
        path, depth = left.pop()
        group = file[_hard_path(file, f"{below}/{path}")]
        if not isinstance(group, h5py.Group):
            raise KeyError(f"{below} is not a group")
        for name in group:
            seen += 1
            if seen > MOST or depth > DEPTH:
                raise ValueError("its groups do not end")
            if group.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
                continue
            item, inner = group[name], f"{path}/{name}" if path else name
            if isinstance(item, h5py.Group):
                left.append((inner, depth + 1))
            elif isinstance(item, h5py.Dataset):
                found.append(inner)
    return sorted(found)


def attribute(file: h5py.File, name: str) -> Any:
    """An attribute of the file: a text, a number or an array. Raises KeyError if there is none, ValueError for one that
    would fill the memory."""
    if name not in file.attrs:
        raise KeyError(f"no attribute {name}")
    told = file.attrs.get_id(name)
    size = 0 if told.shape is None else prod(told.shape) * told.dtype.itemsize
    if size > file.id.get_filesize() or (told.dtype.hasobject and told.shape != ()):
        raise ValueError(f"attribute {name} is neither a number, nor a text, nor numbers")
    value = file.attrs[name]
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if isinstance(value, np.generic) else value


def text(file: h5py.File, name: str) -> str:
    """An attribute that is a text. Raises KeyError if there is none, ValueError if it is anything else."""
    found = attribute(file, name)
    if not isinstance(found, str):
        raise ValueError(f"attribute {name} is not a text")
    return found


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


def _require_filters(found: h5py.Dataset, name: str) -> None:
    """Raise ValueError naming a filter, such as a compression, that HDF5 lacks here."""
    made = found.id.get_create_plist()
    for code, *_, what in map(made.get_filter, range(made.get_nfilters())):
        if not h5py.h5z.filter_avail(code):
            said = f"HDF5's filter {code} ({what.decode(errors='replace').partition(';')[0]}), which is not installed"
            raise ValueError(f"{name} is compressed by {said}; HDF5_PLUGIN_PATH names a folder of filters")


def _require_stored(found: h5py.Dataset, name: str, file_bytes: int, expansion: int) -> None:
    """Raise ValueError unless the file is large enough to store all values of the data set."""
    values, stored = prod(found.shape) * found.dtype.itemsize, found.id.get_storage_size()
    told = f"{name} would take {values:,} bytes, the file holds {stored:,} for it"
    if stored > file_bytes or values > stored * (expansion if found.chunks else 1):
        raise ValueError(told)
    if not found.chunks:
        return
    if (chunk := prod(found.chunks) * found.dtype.itemsize) > LARGEST_CHUNK:
        raise ValueError(f"{name} is stored in chunks of {chunk:,} bytes, at most {LARGEST_CHUNK:,} can be read")
    wanted = prod(-(-size // side) for size, side in zip(found.shape, found.chunks, strict=True))
    if wanted > file_bytes or found.id.get_num_chunks() < wanted:
        raise ValueError(f"{told}: chunks are missing")
