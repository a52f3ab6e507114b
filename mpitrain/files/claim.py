"""A folder that one process at a time writes into."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from mpitrain.errors import BadInput
from mpitrain.files import writing


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep other processes that claim the folder away until the block, or this process, ends.

    Raises BadInput naming a folder that another process has claimed. File systems that cannot lock folders, such as
    NFS, keep none away.
    """
    with writing(folder):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            try:
                flock(handle, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                raise BadInput(f"{folder}: another process is preparing shards in it") from None
        yield
    finally:
        os.close(handle)
