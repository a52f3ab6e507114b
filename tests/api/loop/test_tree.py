"""Nested states as arrays and JSON, and back."""

import json
from math import inf

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")

from mpitrain.api.loop.users import flattened, rebuilt  # noqa: E402
from mpitrain.errors import BadInput  # noqa: E402


def test_there_and_back() -> None:
    """Keys, types, shapes, orders in memory and bits; of types that NumPy lacks, too."""
    kinds = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64)
    tensors = {kind: torch.arange(6).reshape(2, 3).t().to(kind) for kind in kinds}
    value = {
        "state": {0: {"step": torch.tensor(3.0), "none": None}, 1: {}},
        "groups": [
            {
                "lr": 0.1,
                "betas": (0.9, 0.999),
                "most": inf,
                "fused": None,
                "name": "a/b",
                "dtype": torch.bfloat16,
                "params": [0, 1],
            }
        ],
        "all": [*tensors.values(), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.ones(4)[::2]],
        "empty": torch.empty(0, 4),
        "numpy": (np.arange(3, dtype=np.uint32), 7),
    }
    arrays: dict[str, np.ndarray] = {}
    told = json.loads(json.dumps(flattened(value, "optimizer", arrays)))
    assert all(each.ndim == 1 for each in arrays.values()) and "optimizer/state/0/step" in arrays
    again = rebuilt(told, lambda name: arrays[name].copy())
    for given, got in zip(value.pop("all"), again.pop("all"), strict=True):
        assert given.dtype is got.dtype and given.shape == got.shape and bool((given == got).all())
        assert got.stride() == (given.stride() if given.dim() > 1 else (1,))
    assert again.pop("empty").shape == (0, 4) and value.pop("empty").numel() == 0
    (array, seven), (own, _) = again.pop("numpy"), value.pop("numpy")
    assert array.dtype == own.dtype and array.tolist() == [0, 1, 2] and seven == 7
    assert again == value and isinstance(again["groups"][0]["betas"], tuple)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({"a": {1, 2}}, "optimizer/a: a save cannot hold this set"),
        ({(1, 2): 3}, "optimizer: a save cannot hold this dict"),
        ([torch.eye(2).to_sparse()], "optimizer/0: a save cannot hold this Tensor"),
        ({"a": torch.tensor([1.0, inf])}, "optimizer/a: is not finite"),
        (np.array(["a"]), "optimizer: a save cannot hold this ndarray"),
    ],
)
def test_what_is_refused(value: object, line: str) -> None:
    with pytest.raises(BadInput, match=f"^{line}$"):
        flattened(value, "optimizer", {}, finite=True)


@pytest.mark.parametrize(
    "told",
    [
        {"kind": "dict", "items": [[[], 1]]},
        {"kind": "list", "items": 3},
        {"kind": "array", "name": "x", "shape": [2]},
        {"kind": "array", "name": "x", "shape": [-1, -3]},
        {"kind": "tensor", "name": "x", "shape": [3], "dtype": "nn", "order": [0]},
        {"kind": "tensor", "name": "x", "shape": [3], "dtype": "float32", "order": [1]},
        {"kind": "dtype", "name": "nn"},
        {"kind": "tensor", "name": "x", "shape": [3], "dtype": "int8", "order": [0]},
        {"kind": "tensor", "name": "x", "shape": [3], "dtype": "float32", "order": [0]},
        {},
    ],
)
def test_what_is_none_of_ours(told: object) -> None:
    with pytest.raises(ValueError, match=r"x |a state that is none"):
        rebuilt(told, lambda name: np.array([1.0, np.nan, 2.0], np.float32), finite=True)
