"""Nested states, such as an optimizer's state_dict, as named arrays and JSON; and back. Nothing is pickled."""

from collections.abc import Callable
from math import prod

import numpy as np
import torch

from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.models.torch import state as torch_state

#: What JSON holds: plain values as they are, all else as an object with its "kind".
Json = object


def flattened(value: object, name: str, arrays: dict[str, Array], finite: bool = False) -> Json:
    """`value` as JSON; its tensors and arrays go into `arrays`, each flat, under `name` and their keys, with slashes
    between.

    Raises BadInput naming what is neither a dictionary, list, tuple, array, tensor on the CPU nor a plain value; and a
    tensor that is not finite if they are to be `finite`.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict) and all(isinstance(key, str | int) for key in value):
        items = [[key, flattened(each, f"{name}/{key}", arrays, finite)] for key, each in value.items()]
        return {"kind": "dict", "items": items}
    if isinstance(value, list | tuple):
        inner = [flattened(each, f"{name}/{place}", arrays, finite) for place, each in enumerate(value)]
        return {"kind": "list" if isinstance(value, list) else "tuple", "items": inner}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        arrays[name] = value.reshape(-1)
        return {"kind": "array", "name": name, "shape": list(value.shape)}
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type == "cpu":
        if finite and not bool(value.isfinite().all()):
            raise BadInput(f"{name}: is not finite")
        arrays[name] = _array(value.detach().contiguous().reshape(-1))
        return {"kind": "tensor", "name": name, "shape": list(value.shape), "dtype": str(value.dtype).split(".")[1]}
    raise BadInput(f"{name}: a save cannot hold this {type(value).__name__}")


def _array(flat: torch.Tensor) -> Array:
    """The values; of types that NumPy lacks, such as bfloat16, the bytes."""
    try:
        return torch_state.numbers(flat)
    except TypeError:
        return torch_state.numbers(flat.view(torch.uint8))


def rebuilt(told: Json, read: Callable[[str], Array], finite: bool = False) -> object:
    """The value that `flattened` was given, its flat arrays as `read` gives them. Raises ValueError naming what is not
    as `flattened` writes it, or not finite where that is asked for."""
    if told is None or isinstance(told, bool | int | float | str):
        return told
    match told:
        case {"kind": "dict", "items": list(items)} if all(map(_keyed, items)):
            return {key: rebuilt(each, read, finite) for key, each in items}
        case {"kind": "list", "items": list(items)}:
            return [rebuilt(each, read, finite) for each in items]
        case {"kind": "tuple", "items": list(items)}:
            return tuple(rebuilt(each, read, finite) for each in items)
        case {"kind": "array", "name": str(name), "shape": list(shape)}:
            array = read(name)
            return array.reshape(_sizes(name, shape, array.size))
        case {"kind": "tensor", "name": str(name), "shape": list(shape), "dtype": str(dtype)}:
            flat = _typed(name, torch.from_numpy(read(name)), dtype)
            if finite and not bool(flat.isfinite().all()):
                raise ValueError(f"{name} is not finite")
            return flat.reshape(_sizes(name, shape, flat.numel()))
    raise ValueError(f"its numbers hold a state that is none: {str(told)[:80]}")


def _keyed(item: object) -> bool:
    return isinstance(item, list) and len(item) == 2 and isinstance(item[0], str | int)


def _sizes(name: str, shape: list[object], elements: int) -> list[int]:
    """The shape, which has this many elements."""
    sizes = [size for size in shape if isinstance(size, int) and size >= 0]
    if len(sizes) < len(shape) or prod(sizes) != elements:
        raise ValueError(f"{name} has {elements} elements, expected {shape}")
    return sizes


def _typed(name: str, flat: torch.Tensor, dtype: str) -> torch.Tensor:
    kind = getattr(torch, dtype, None)
    if isinstance(kind, torch.dtype):
        if flat.dtype is kind:
            return flat
        if flat.dtype is torch.uint8:  # the bytes of one that NumPy lacks
            return flat.view(kind)
    raise ValueError(f"{name} is {flat.dtype}, expected {dtype}")
