"""Data sets of the user's own as parts: what is gathered is what they hold, and what cannot be used is named."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from hypothesis.extra.numpy import array_shapes, arrays

from mpitrain.data.own import OwnPart, classes_of
from mpitrain.errors import BadInput
from mpitrain.sampling.batch import SampleForm

FINITE = some.floats(-1e6, 1e6, width=32)


class Listed:
    """A data set in PyTorch's sense."""

    def __init__(self, *items: object) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> object:
        return self.items[index]


def part(given: object, classes: int = 0, dtype: str = "float32") -> OwnPart:
    return OwnPart("data.import = 'x'", "train", given, classes, dtype)


@given(
    array_shapes(min_dims=1, max_dims=4, max_side=4),
    array_shapes(min_dims=0, max_dims=2, max_side=3) | some.just(()),
    some.sampled_from(["float32", "float64", "uint8", "int64", "bool"]),
    some.data(),
)
def test_arrays_and_their_samples_are_gathered_alike(
    shape: tuple[int, ...], of_target: tuple[int, ...], dtype: str, data: some.DataObject
) -> None:
    """Of any shape and dtype: what is gathered at once, one by one and by NumPy's indices is the same."""
    inputs = data.draw(arrays(dtype, shape, elements=FINITE if "float" in dtype else some.integers(0, 1)))
    targets = data.draw(arrays("float32", (shape[0], *of_target), elements=FINITE))
    indices = np.array(data.draw(some.lists(some.integers(0, shape[0] - 1), min_size=1, max_size=9)))
    whole, each = part((inputs, targets)), part(Listed(*zip(inputs, targets, strict=True)))
    assert whole.in_memory and not each.in_memory
    assert whole.form == each.form and whole.samples == each.samples == shape[0]
    for own in (whole, each):
        batch = own.gather(indices, own.form.room(len(indices), "float32"))
        assert batch.inputs.dtype == ("float32" if "float" in dtype else "int32")
        np.testing.assert_array_equal(batch.inputs, inputs[indices].astype(batch.inputs.dtype))
        np.testing.assert_array_equal(batch.targets, targets[indices])


def test_the_form_of_samples() -> None:
    """Classes have no axis; the run's dtype is that of floats alone."""
    images = part((np.zeros((3, 1, 4, 5)), np.array([0, 2, 1])), classes=3)
    assert images.form == SampleForm((1, 4, 5)) and images.held_bytes == 3 * 20 * 4 + 3 * 4
    words = part(Listed((np.zeros(7, np.uint16), np.zeros(7, np.int64))), classes=3)
    assert words.form == SampleForm((7,), (7,), np.int32)
    assert part(Listed((0.5, 1.5))).form == SampleForm((), target_dtype=None)
    assert (
        part((np.zeros((2, 3)), np.zeros((2, 1))), dtype="float64")
        .gather(np.array([1]), SampleForm((3,), (1,), target_dtype=None).room(1, "float64"))
        .inputs.dtype
        == np.float64
    )


@pytest.mark.parametrize(
    ("given", "classes", "words"),
    [
        ((np.zeros((3, 2)), np.zeros(4)), 0, "part train: inputs .3, 2. and targets .4. differ in their number"),
        ((np.zeros((0, 2)), np.zeros(0)), 0, "part train has no samples"),
        (Listed(), 0, "part train has no samples"),
        ((np.zeros((3, 2)), np.zeros((3, 0), int)), 2, r"sample 0 of part train: its targets have the shape \[0\]: no"),
        (Listed((1, np.zeros((2, 0)))), 0, r"sample 0 of part train: its targets have the shape \[2, 0\]: no numbers"),
        (range(1 << 40), 0, "part train has 1,099,511,627,776 samples, at most 4,294,967,296 can be put in order"),
        (5, 0, "part train: is int: neither a pair of arrays nor a data set"),
        ("text", 0, "part train: is str: neither"),
        (Listed(1), 0, "sample 0 of part train: is int, not a pair"),
        (Listed({"x": 1}), 0, "sample 0 of part train: is dict, not a pair"),
        (Listed(("a", 1)), 0, "sample 0 of part train: holds str, where numbers"),
        (Listed((None, 1)), 0, "sample 0 of part train: holds NoneType, where numbers"),
        (Listed(([[1, 2], [3]], 1)), 0, "sample 0 of part train: is no array: ValueError"),
        (Listed((1.0, 1 << 40)), 0, "sample 0 of part train: holds whole numbers beyond int32"),
        ((np.array([[1.0], [np.nan]]), np.zeros(2)), 0, "sample 1 of part train: its inputs are not finite"),
        ((np.zeros((2, 2)), np.array([0, 3])), 3, r"sample 1 of part train: the target \[3\] is not in range\(3\)"),
        ((np.zeros((2, 2)), np.array([0, -1])), 3, r"sample 1 of part train: the target \[-1\] is not in range"),
        ((np.zeros((2, 2)), np.array([1 + 2j, 1])), 0, "part train: holds complex128, where numbers"),
    ],
)  # fmt: skip
def test_a_part_that_cannot_be_used(given: object, classes: int, words: str) -> None:
    with pytest.raises(BadInput, match=f"^data.import = 'x': {words}"):
        part(given, classes)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (([1.0, 2.0, 3.0], 1), r"its inputs have the shape \[3\], those of the first sample \[2\]"),
        (([1.0, 2.0], [1]), r"its targets have the shape \[1\], those of the first sample \[\]"),
        (([1.0, 2.0], 0.5), "its targets are float64, those of the first sample not"),
        (([1.0, np.inf], 1), "its inputs are not finite"),
        (([1.0, 2.0], 9), r"the target \[9\] is not in range\(3\)"),
    ],
)
def test_a_sample_that_differs_from_the_first(second: object, words: str) -> None:
    own = part(Listed(([1.0, 2.0], 0), second), classes=3)
    with pytest.raises(BadInput, match=f"^data.import = 'x': sample 1 of part train: {words}"):
        own.gather(np.array([0, 1]), own.form.room(2, "float32"))
    with pytest.raises(IndexError):
        own.gather(np.array([2]), own.form.room(1, "float32"))


def test_what_a_sample_raises_is_told_with_its_line() -> None:
    """Also where it ends the program: a rank that left by itself would be waited for."""

    class Raises(Listed):
        def __getitem__(self, index: int) -> object:
            if index == 2:
                sys.exit("no data")
            return (1.0, 1) if not index else [][index]  # line of the fault

    own = part(Raises(1, 2, 3))
    here = Path(__file__).name
    for index, said in ((1, "IndexError: list .*"), (2, "SystemExit: no data ")):
        with pytest.raises(BadInput, match=rf"sample {index} of part train: cannot be read: {said}.*{here}, line"):
            own.gather(np.array([index]), own.form.room(1, "float32"))


def test_how_many_classes_there_are() -> None:
    """What torchvision's data sets and PyTorch's wrappers say, and whole targets of arrays."""
    named, subset = Listed((1.0, 1)), Listed((1.0, 1))
    named.classes, subset.dataset = ["cat", "dog"], named  # type: ignore[attr-defined]
    assert classes_of(named, "x") == classes_of(subset, "x") == 2
    told = Listed((1.0, 1))
    told.targets = [0, 4, 2]  # type: ignore[attr-defined]
    assert classes_of(told, "x") == 5
    assert classes_of((np.zeros((2, 3)), np.array([6, 0])), "x") == 7
    assert classes_of((np.zeros((2, 3)), np.array([0.5, 1])), "x") == 0
    named.classes, named.tensors = None, (np.zeros((2, 3)), np.array([6, 0]))  # type: ignore[attr-defined]
    assert classes_of(subset, "x") == 7  # of a TensorDataset, as random_split makes it
    assert classes_of(Listed((1.0, 1)), "x") == 0


def test_the_identity_tells_copies_apart() -> None:
    inputs, targets = np.arange(6.0).reshape(3, 2), np.array([0, 1, 2])
    same = part((inputs, targets)).identity()
    assert part((inputs.copy(), targets.copy())).identity() == same
    assert part((inputs, targets[::-1])).identity() != same and part((inputs + 1, targets)).identity() != same
