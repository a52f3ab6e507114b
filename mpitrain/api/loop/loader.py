"""A loader's batches, shared out: each sample of an epoch comes once over all ranks, and all have as many batches."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import nullcontext, suppress
from dataclasses import fields, is_dataclass
from itertools import chain, islice, tee
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, Subset

from mpitrain.data.sampler import epoch_indices
from mpitrain.errors import BadInput
from mpitrain.files import checksum
from mpitrain.flat import Array
from mpitrain.models.torch.examination import written
from mpitrain.models.torch.place import HOST
from mpitrain.sampling.queue import Work
from mpitrain.sampling.rng import drawn_apart, stream, undisturbed

#: The arguments that a loader with other batches takes over from the user's.
KEPT = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator")


class Dealt(NamedTuple):
    """This rank's batch of a round, its number of samples (0 if it only keeps the rank in step), all ranks' together,
    whether each rank has as many, and what all ranks are to have read alike."""

    batch: Any
    samples: int
    together: int
    alike: bool
    read: object = None


def shared(loader: Iterable[Any], part: int, parts: int, seed: int, epoch: int, handed: int = 0) -> Iterator[Dealt]:
    """One epoch of `loader` as the rank number `part` of `parts` sees it, after the `handed` batches that it has had.

    The samples of a `DataLoader` over a map-style dataset are divided: its batch_size is that of each rank, and where
    it shuffles, the order is drawn from the seed and the epoch, as the trainer's is.

    Of other iterables the ranks take one batch each in turn; likewise if the loader has its own sampler or batch
    sampler, its own `__iter__`, or no batch_size. What they draw at random, from PyTorch's, NumPy's and Python's common
    generators or from one of the loader's or its samplers', then follows from the seed and the epoch, which is passed
    to their `set_epoch`, if any.
    Raises BadInput for anything that cannot be iterated, and for a sampler that divides the samples itself.
    """
    if not isinstance(loader, Iterable):
        raise BadInput(f"ranks.share: a {type(loader).__name__} is no iterable of batches")
    if isinstance(loader, DataLoader):
        _require_undivided(loader)
    if not isinstance(loader, DataLoader) or loader.batch_sampler is None or _is_another_kind(loader):
        whole = drawn_apart(loader, lambda: _begin(loader, seed, epoch))
        yield from islice(_turns(whole, part, parts), handed, None)
        return
    if loader.batch_size is not None and _takes_each_once(loader):
        rounds = _rounds(loader, parts, seed, epoch)
    else:
        rounds = _of_batches(loader.batch_sampler, parts, lambda: _seed(seed, epoch, _samplers(loader)))
    rounds, ahead = tee(islice(rounds, handed, None))  # workers read ahead
    # A rank for which no sample is left reads a batch that another rank trains on.
    own = (ours[part] or next(filter(None, ours)) for ours in ahead)
    part_of = loader.dataset.indices if isinstance(loader.dataset, Subset) else None  # as of random_split
    with undisturbed() if handed else nullcontext():  # its start draws a seed, as it did before
        batches = iter(_made_anew(loader, own))
    for ours, batch in zip(rounds, batches, strict=True):
        yield _dealt(batch, part, list(map(len, ours)), (ours, part_of))


def _dealt(batch: Any, part: int, counts: list[int], read: object) -> Dealt:
    return Dealt(batch, counts[part], sum(counts), len(set(counts)) == 1, read)


def _is_another_kind(loader: "DataLoader[Any]") -> bool:
    """Whether the samples are a stream, or the loader's class makes batches in its own way."""
    own = any(getattr(type(loader), each) is not getattr(DataLoader, each) for each in ("__iter__", "_get_iterator"))
    return own or isinstance(loader.dataset, IterableDataset)


def _require_undivided(loader: "DataLoader[Any]") -> None:
    for sampler in _samplers(loader):
        if (getattr(sampler, "num_replicas", 1) or 1) > 1:
            line = f"ranks.share: the loader's {type(sampler).__name__} gives each rank its own part already"
            raise BadInput(f"{line}, which would be divided again; give a loader without it, and shuffle=True")


def _samplers(loader: "DataLoader[Any]") -> tuple[object, ...]:
    return loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)


def _takes_each_once(loader: "DataLoader[Any]") -> bool:
    """Whether the loader's sampler is PyTorch's own, and gives each sample of the dataset once."""
    sampler = loader.sampler
    if type(sampler) is RandomSampler and (sampler.replacement or sampler.num_samples != len(sampler.data_source)):
        return False
    of = getattr(sampler, "data_source", None)
    return type(sampler) in (RandomSampler, SequentialSampler) and of is loader.dataset


def _rounds(loader: "DataLoader[Any]", parts: int, seed: int, epoch: int) -> Iterator[list[list[int]]]:
    """The indices of every rank's samples, round by round."""
    samples, size = len(loader.dataset), loader.batch_size or 1  # type: ignore[arg-type]
    shuffled = isinstance(loader.sampler, RandomSampler)
    order: Array = epoch_indices(seed, epoch, samples) if shuffled else np.arange(samples)
    for work in Work(epoch, 0, samples, size * parts).minibatches():
        if loader.drop_last and work.count < size * parts:
            return
        among = min(parts, max(work.count // min(size, 2), 1))  # a lone sample has no variance for batch normalisation
        shares = [work.share(part, among) for part in range(among)]
        ours = [order[own.start : own.start + own.count].tolist() for own in shares]
        yield [*([] for _ in range(parts - among)), *ours]


def _of_batches(batches: Iterable[Any], parts: int, seed: Callable[[], None]) -> Iterator[list[list[int]]]:
    """The same for a loader's own batches of indices, of which all ranks draw the same; they may be endless."""

    def rounds() -> Iterator[list[list[int]]]:
        left = (indices for batch in batches if (indices := list(batch)))
        while ours := list(islice(left, parts)):
            yield [*ours, *([] for _ in range(parts - len(ours)))]

    return drawn_apart(rounds(), seed)


def _begin(loader: Iterable[Any], seed: int, epoch: int) -> None:
    """Let what is drawn for the loader begin anew, in new workers, where they would outlive an epoch, too."""
    owners: tuple[object, ...] = (loader,)
    if isinstance(loader, DataLoader):
        owners = (loader, *_samplers(loader), loader.dataset)
        if type(loader).__iter__ is DataLoader.__iter__:
            loader._iterator = None
    _seed(seed, epoch, owners)


def _seed(seed: int, epoch: int, owners: Iterable[object]) -> None:
    """Seed the common generators, and those that the owners have; tell these the epoch, if they want to know it."""
    numbers = stream(seed, "batches", epoch)
    HOST.seed([int(numbers.integers(1 << 32))] * 3)
    for owner in owners:
        if isinstance(generator := getattr(owner, "generator", None), torch.Generator):
            generator.manual_seed(int(numbers.integers(1 << 32)))
        if isinstance(rng := getattr(owner, "rng", None), random.Random):  # as fastai's loaders have it
            rng.seed(int(numbers.integers(1 << 32)))
        if callable(set_epoch := getattr(owner, "set_epoch", None)):
            set_epoch(epoch)


def _made_anew(loader: "DataLoader[Any]", batches: Iterator[list[int]]) -> "DataLoader[Any]":
    kept = {name: getattr(loader, name) for name in KEPT}
    if loader.num_workers:
        kept["prefetch_factor"] = loader.prefetch_factor
    return DataLoader(loader.dataset, batch_sampler=batches, **kept)


def _turns(batches: Iterable[Any], part: int, parts: int) -> Iterator[Dealt]:
    """The batches of any iterable, which every rank reads whole."""
    left = iter(batches)
    while ours := list(islice(left, parts)):
        counts = [*map(samples_in, ours), *[0] * (parts - len(ours))]
        yield _dealt(ours[part] if part < len(ours) else ours[0], part, counts, ours)


def fingerprint(read: object) -> float:
    """A checksum as a whole number above 0, which a float holds; 1 if PyTorch cannot write what was read."""
    with suppress(Exception):
        return 1.0 + int(checksum(written(read))[:12], 16)
    return 1.0


def samples_in(batch: object) -> int:
    """The length of the first thing in a batch that has one, numbers left out; a text is one sample."""
    return next(_lengths(batch), 1)


def _lengths(batch: object) -> Iterator[int]:
    if isinstance(batch, torch.Tensor):
        if batch.dim():
            yield batch.size(0)  # a nested tensor may have no shape
    elif isinstance(batch, np.ndarray):
        yield from batch.shape[:1]
    elif isinstance(batch, str | bytes):
        yield 1
    elif isinstance(batch, Mapping):
        yield from chain.from_iterable(map(_lengths, batch.values()))
    elif isinstance(batch, list | tuple) and not all(isinstance(each, str | bytes) for each in batch):
        yield from chain.from_iterable(map(_lengths, batch))
    elif isinstance(batch, Sized):
        yield len(batch)
    elif is_dataclass(batch):
        yield from chain.from_iterable(_lengths(getattr(batch, field.name)) for field in fields(batch))
