"""Batches shared out: each sample of an epoch once over all ranks, and as many batches on every rank."""

import random
from collections import Counter, UserDict
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")
from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from mpitrain.api.loop.loader import Dealt, shared  # noqa: E402
from mpitrain.data.sampler import epoch_indices  # noqa: E402
from mpitrain.errors import BadInput  # noqa: E402


def dealt(loader: object, parts: int, epoch: int = 0) -> list[list[Dealt]]:
    return [list(shared(loader, part, parts, 7, epoch)) for part in range(parts)]  # type: ignore[arg-type]


def require_once(rounds: list[list[Dealt]], samples: list[int]) -> None:
    """All ranks have as many batches, and those that count hold each sample once."""
    assert len({len(of_rank) for of_rank in rounds}) == 1
    seen = Counter(int(i) for of_rank in rounds for each in of_rank if each.samples for i in each.batch)
    assert seen == Counter(samples)
    for together in zip(*rounds, strict=True):
        assert {each.together for each in together} == {sum(each.samples for each in together)}
        assert all(each.samples in (0, len(each.batch)) for each in together)


def in_order(batches: list[list[int]]) -> list[int]:
    return sorted(i for batch in batches for i in batch)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 6), st.booleans())
def test_a_data_set(samples: int, batch: int, parts: int, shuffle: bool) -> None:
    loader = DataLoader(range(samples), batch_size=batch, shuffle=shuffle)
    rounds = dealt(loader, parts, epoch=3)
    require_once(rounds, list(range(samples)))
    order = [int(i) for together in zip(*rounds, strict=True) for each in together if each.samples for i in each.batch]
    assert order == (epoch_indices(7, 3, samples).tolist() if shuffle else list(range(samples)))
    for each in (each for together in zip(*rounds, strict=True) for each in together):
        assert len(each.batch) >= min(batch, each.together, 2)  # for batch normalisation


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 6))
def test_whole_rounds_only(samples: int, batch: int, parts: int) -> None:
    rounds = dealt(DataLoader(range(samples), batch_size=batch, drop_last=True), parts)
    require_once(rounds, list(range(samples // (batch * parts) * batch * parts)))


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 6))
def test_batches_of_its_own(samples: int, batch: int, parts: int) -> None:
    """A batch sampler that draws: the ranks draw alike."""
    sampler = BatchSampler(RandomSampler(range(samples)), batch, drop_last=False)
    rounds = [
        [each._replace(batch=each.batch[: each.samples or 1]) for each in of_rank]
        for of_rank in dealt(DataLoader(range(samples), batch_sampler=sampler), parts)
    ]
    require_once(rounds, list(range(samples)))


def test_a_weighted_sampler_draws_alike() -> None:
    sampler = WeightedRandomSampler([1.0, 2.0, 3.0, 4.0], 24)
    rounds = dealt(DataLoader(range(4), batch_size=2, sampler=sampler), 3)
    assert [len(of_rank) for of_rank in rounds] == [4, 4, 4]
    again = dealt(DataLoader(range(4), batch_size=2, sampler=sampler), 3)
    assert [[each.batch.tolist() for each in of_rank] for of_rank in rounds] == [
        [each.batch.tolist() for each in of_rank] for of_rank in again
    ]


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self):
        return iter(range(22))


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_iterables(parts: int) -> None:
    """Batches are dealt in turns: 22 samples in 6 batches of at most 4."""
    for loader in (DataLoader(Stream(), batch_size=4), [torch.arange(k, min(k + 4, 22)) for k in range(0, 22, 4)]):
        rounds = dealt(loader, parts)
        assert len({len(of_rank) for of_rank in rounds}) == 1
        seen = [int(i) for of_rank in rounds for each in of_rank if each.samples for i in each.batch]
        assert sorted(seen) == list(range(22))


def test_no_iterable() -> None:
    with pytest.raises(BadInput, match=r"ranks\.share: a int is no iterable"):
        dealt(7, 2)


class Endless(Sampler):  # type: ignore[type-arg]
    def __iter__(self):
        while True:
            yield from torch.randperm(10).tolist()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_without_an_end(workers: int) -> None:
    """It is drawn from as its batches are asked for, alike on ranks that are seeded otherwise."""
    loader = DataLoader(range(10), batch_size=2, sampler=Endless(), num_workers=workers)
    rounds = []
    for part in range(2):
        torch.manual_seed(part)
        rounds.append([each.batch.tolist() for each in islice(shared(loader, part, 2, 7, 0), 20)])
        rest = shared(loader, part, 2, 7, 0, handed=7)
        assert [each.batch.tolist() for each in islice(rest, 13)] == rounds[part][7:]
    in_turn = [batch for together in zip(*rounds, strict=True) for batch in together]
    for first in range(0, 40, 5):
        assert in_order(in_turn[first : first + 5]) == list(range(10))


class ShuffledStream(IterableDataset):  # type: ignore[type-arg]
    """Its own order, which it draws as programs with a shuffle buffer do."""

    def __iter__(self):
        order = torch.randperm(20).tolist()
        random.shuffle(order)
        return iter(order)


class Lengthless(Sampler):  # type: ignore[type-arg]
    def __iter__(self):
        order = list(range(20))
        random.shuffle(order)
        return iter(order)


class LengthlessBatches(Lengthless):
    def __iter__(self):
        order = list(super().__iter__())
        return iter([order[k : k + 4] for k in range(0, 20, 4)])


@pytest.mark.parametrize("keys", [{"sampler": Lengthless(), "batch_size": 4}, {"batch_sampler": LengthlessBatches()}])
def test_a_sampler_without_a_length(keys: dict[str, Any]) -> None:
    """Python's numbers, which it draws, are alike on all ranks, and others in each epoch."""
    loader = DataLoader(range(20), **keys)
    first, second = [[each.batch.tolist() for each in shared(loader, 0, 1, 7, epoch)] for epoch in (0, 1)]
    assert in_order(first) == in_order(second) == list(range(20)) and first != second
    random.seed(5)
    assert [each.batch.tolist() for each in shared(loader, 0, 1, 7, 0)] == first


DATA = range(20)


class Shifted(DataLoader):  # type: ignore[type-arg]
    def __iter__(self):
        for batch in super().__iter__():
            yield batch + 1000


class ShiftedWithin(DataLoader):  # type: ignore[type-arg]
    """As loaders of graphs do it."""

    def _get_iterator(self):
        return iter([batch + 1000 for batch in super()._get_iterator()])


class Counting(Sampler):  # type: ignore[type-arg]
    """As the samplers of accelerate: the order follows from the epochs that it counts."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        self.epoch += 1
        return iter(random.Random(self.epoch).sample(DATA, 20))


class CountingStream(Counting, IterableDataset):  # type: ignore[type-arg]
    pass


class OwnGenerator:
    """As the loaders of fastai: the order follows from a generator of their own."""

    rng = random.Random()

    def __iter__(self):
        self.rng = random.Random(self.rng.random())
        return iter(self.rng.sample(DATA, 20))


@pytest.mark.parametrize("loader", [DataLoader(DATA, 4, sampler=Counting()), CountingStream(), OwnGenerator()])
def test_orders_of_epochs(loader: Any) -> None:
    """Each epoch has its own order, whichever ones the loader has been asked for before."""
    first, second, again = [[str(each) for each in shared(loader, 0, 2, 7, epoch)] for epoch in (0, 1, 0)]
    assert first == again != second


@pytest.mark.parametrize(
    ("loader", "samples"),
    [
        (DataLoader(DATA, 4, sampler=Counting()), 20),
        (DataLoader(CountingStream(), 4), 20),
        (OwnGenerator(), 20),
        (DataLoader(DATA, 4, sampler=RandomSampler(DATA, num_samples=8)), 8),
        (DataLoader(DATA, 4, sampler=RandomSampler(DATA, num_samples=40)), 40),
        (DataLoader(DATA, 4, sampler=SequentialSampler(range(7))), 7),
        (Shifted(DATA, 4, shuffle=True), 20),
        (ShiftedWithin(DATA, 4, shuffle=True), 20),
        (DataLoader(DATA, None, shuffle=True), 20),
        (DataLoader(ShuffledStream(), 4), 20),
        (ShuffledStream(), 20),
        (DataLoader(torch.arange(20), None, sampler=BatchSampler(RandomSampler(DATA), 4, False)), 20),
        (DataLoader(DATA, 4, sampler=SubsetRandomSampler(DATA, torch.Generator())), 20),
        (DataLoader(DATA, batch_sampler=BatchSampler(SubsetRandomSampler(DATA, torch.Generator()), 4, False)), 20),
        (Shifted(DATA, 4, shuffle=True, generator=torch.Generator()), 20),
        (DataLoader(ShuffledStream(), 4, num_workers=1, persistent_workers=True), 20),
        (DataLoader(ShuffledStream(), 4, num_workers=1, generator=torch.Generator()), 20),
    ],
)
def test_what_no_other_loader_stands_for(loader: Any, samples: int) -> None:
    """Its own sampler, batches or samples are taken, alike on ranks that are seeded otherwise; on from anywhere."""
    rounds = []
    for part in range(2):
        torch.manual_seed(part)
        random.seed(part)
        rounds.append(list(shared(loader, part, 2, 7, 0)))
        rest = list(shared(loader, part, 2, 7, 0, handed=1))
        assert [str(each) for each in rest] == [str(each) for each in rounds[part][1:]]
    if isinstance(loader, DataLoader):
        loader._iterator = None  # persistent workers would live as long as the table above
    own = [torch.as_tensor(each.batch).reshape(-1).tolist() for of_rank in rounds for each in of_rank if each.samples]
    shift = 1000 * isinstance(loader, Shifted | ShiftedWithin)
    expected = {40: [*DATA, *DATA], 20: DATA, 7: range(7)}.get(samples)
    assert len(in_order(own)) == samples
    assert expected is None or in_order(own) == sorted(i + shift for i in expected)


@pytest.mark.parametrize("inner", [False, True])
def test_a_sampler_that_divides_the_samples_itself(inner: bool) -> None:
    sampler = DistributedSampler(DATA, num_replicas=2, rank=1)
    keys = {"batch_sampler": BatchSampler(sampler, 4, False)} if inner else {"sampler": sampler}
    with pytest.raises(BadInput, match=r"ranks\.share: the loader's DistributedSampler gives each rank its own part"):
        dealt(DataLoader(DATA, **keys), 2)


def test_with_replacement() -> None:
    """Some samples come more than once, as they do without ranks."""
    rounds = dealt(DataLoader(DATA, 4, sampler=RandomSampler(DATA, replacement=True)), 2)
    drawn = Counter(int(i) for of_rank in rounds for each in of_rank if each.samples for i in each.batch)
    assert sum(drawn.values()) == 20 and max(drawn.values()) > 1


@dataclass
class Sequences:
    """A batch, as collations of a program's own make them."""

    longest: int
    steps: torch.Tensor


def test_samples_of_any_mapping() -> None:
    """As tokenizers give it: not its keys are counted."""
    of_rank = dealt([UserDict(tokens=torch.zeros(8, 3), length=3)], 1)[0]
    assert [each.samples for each in of_rank] == [8]


@pytest.mark.parametrize("batch", [["one", "a few words"], {"text": ("one", "two")}, (["a", "bc"], torch.zeros(2))])
def test_samples_of_texts(batch: Any) -> None:
    """As the usual collation leaves them: not a text's letters are counted."""
    assert [each.samples for each in dealt([batch, "a text by itself"], 1)[0]] == [2, 1]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_samples_of_nested_tensors_and_data_classes(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=layout)
    assert [each.samples for each in dealt([(nested, 3), Sequences(7, nested)], 1)[0]] == [2, 2]


@pytest.mark.parametrize(
    "batch", [(7, torch.zeros(2, 3)), {"epoch": torch.tensor(1), "x": torch.zeros(2)}, ([5, 3], torch.zeros(2, 5))]
)
def test_samples_behind_numbers(batch: Any) -> None:
    """As of `enumerate(loader)`: a number has no length."""
    assert [each.samples for each in dealt([batch, 7], 1)[0]] == [2, 1]
