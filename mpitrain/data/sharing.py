"""Data of which the ranks of a node keep one copy: the samples that they train on, and the orders of epochs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from mpitrain.flat import Array, share

SLOTS = 2  # orders that are kept: some ranks may be in an epoch, others in the next one


class Sharing(Protocol):
    """The processes that share memory, of which this is number `part` of `parts`.

    The methods, as they are written here, are those of a process that shares with nobody.
    """

    part: int
    parts: int

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Memory that all these processes address, full of zeros. Collective."""
        return np.zeros(shape, dtype)

    def together(self, action: Callable[[], object]) -> None:
        """Call `action` in every process, and wait until all have returned from it. Raises BadInput in all processes
        if it is raised in one. Collective."""
        action()

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """A context that one process at a time is in; gives False if another one has not left it in time."""
        yield True


class Alone(Sharing):
    """A process that shares its data with nobody. What it raises, its callers have to make known to other ranks."""

    part, parts = 0, 1


ALONE = Alone()


def held_once(array: Array, sharing: Sharing) -> Array:
    """The array, which every process has, as one copy in shared memory; each copies a part. Collective."""
    if sharing is ALONE:
        return array
    common, part = sharing.array(array.shape, array.dtype), share(len(array), sharing.part, sharing.parts)
    common[part] = array[part]
    sharing.together(lambda: None)
    return common


class Orders:
    """The orders of epochs, which `order` gives: a permutation of range(samples) for the number of an epoch.

    The first process to ask for an epoch's order makes it for all. An order that a later epoch's has overwritten, or
    whose maker did not finish, is made again by each process for itself.
    """

    def __init__(self, samples: int, order: Callable[[int], Array], sharing: Sharing = ALONE) -> None:
        self._order, self._sharing, self._own = order, sharing, lru_cache(maxsize=SLOTS)(order)
        self._there = sharing.array((SLOTS,), np.int64)  # each order's epoch, plus 1; 0 while it is made
        self._orders = sharing.array((SLOTS, samples), np.uint32 if samples < 1 << 32 else np.int64)
        self._shares = True

    def part(self, epoch: int, start: int, count: int) -> Array:
        """The samples at `count` places of an epoch's order from `start` on, int64."""
        slot, wanted = epoch % SLOTS, epoch + 1
        if self._shares:
            with self._sharing.locked() as mine:
                self._shares = mine
                if mine and self._there[slot] < wanted:
                    self._there[slot] = 0
                    self._orders[slot] = self._order(epoch)
                    self._there[slot] = wanted
                if mine and self._there[slot] == wanted:
                    return self._orders[slot, start : start + count].astype(np.int64)
        return self._own(epoch)[start : start + count]
