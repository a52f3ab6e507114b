"""The checksum of vectors in messages: the reference's number in every order of blocks, another one for other bytes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mpitrain.kernels.launch import Kernels
from tests.kernels import reference

from .conftest import Guarded

#: The last is more than the threads of the largest grid on the host, several times over.
SIZES = [0, 1, 2, 3, 255, 512, 513, 16384, 70_001]


def result() -> np.ndarray:
    return np.full(1, 12345, np.uint64)


def random(size: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(size).standard_normal(size).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_reference_s_number(compare: Callable[..., list[Any]], order: int, dtype: type) -> None:
    """Wherever the vector begins: `compare` places it off any alignment but its element's."""
    for size in SIZES if dtype is np.float32 else SIZES[:6]:
        compare("checksum", random(size, dtype), result())


def test_one_kind_of_bytes(compare: Callable[..., list[Any]]) -> None:
    """Zeros, ones, NaN, the words that the sum's own constants would cancel."""
    for value in (0, 0xFFFFFFFF, 0x7FC00000, 0x7F4A7C15, 0x9E3779B9):
        compare("checksum", np.full(1001, value, np.uint32).view(np.float32), result())


def test_by_its_definition() -> None:
    """Word for word, with Python's integers."""

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    # splitmix64 from state 0 gives this first: https://prng.di.unimi.it/splitmix64.c
    assert mix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    for words in ([], [7], [7, 8], [7, 8, 9], [2**32 - 1] * 5):
        half, odd = divmod(len(words), 2)
        joined = [words[i] | words[half + i] << 32 for i in range(half)] + words[len(words) - odd :]
        wanted = len(words) + sum(mix((w + (i + 1) * 0x9E3779B97F4A7C15) % 2**64) for i, w in enumerate(joined))
        assert checksum(np.array(words, np.uint32).view(np.float32)) == wanted % 2**64


def checksum(vector: np.ndarray) -> int:
    """By the reference, which the kernel agrees with."""
    into = result()
    reference.checksum(vector, into)
    return int(into[0])


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_every_bit_counts(size: int) -> None:
    vector = random(size)
    whole, seen = vector.view(np.uint8), {checksum(vector)}
    for bit in range(8 * whole.size):
        whole[bit // 8] ^= 1 << bit % 8
        seen.add(checksum(vector))
        whole[bit // 8] ^= 1 << bit % 8
    assert len(seen) == 8 * whole.size + 1


@pytest.mark.parametrize("size", [2, 9, 40])
def test_every_place_counts(size: int) -> None:
    """Two elements that change places, the same numbers the other way round, one more zero at the end."""
    vector = np.arange(size, dtype=np.float32)
    seen = {checksum(vector), checksum(vector[::-1].copy()), checksum(np.append(vector, np.float32(0)))}
    pairs = [(i, j) for i in range(size) for j in range(i) if (i, j) != (1, 0) or size > 2]
    for i, j in pairs:
        vector[[i, j]] = vector[[j, i]]
        seen.add(checksum(vector))
        vector[[i, j]] = vector[[j, i]]
    assert len(seen) == len(pairs) + 3


def test_signs_of_zero_and_nan_payloads_count() -> None:
    words = [0, 1 << 31, 0x7FC00000, 0x7FC00001, 0xFFC00000]
    assert len({checksum(np.array([word], np.uint32).view(np.float32)) for word in words}) == len(words)


def test_a_slice_and_its_copy(xp: Any, kernels: Kernels) -> None:
    """A vector has one number, wherever it lies; the bytes around it do not count."""
    vector = random(1000)
    sums = []
    for start in (0, 1, 3):
        there, into = Guarded(xp, np.roll(vector, start)), xp.zeros(1, np.uint64)
        kernels.checksum(there.device[start:900], into)
        copied, again = Guarded(xp, np.roll(vector, start)[start:900].copy()), xp.zeros(1, np.uint64)
        kernels.checksum(copied.device, again)
        assert into.get() == again.get()
        sums.append(int(into.get()[0]))
    assert len(set(sums)) == 3
