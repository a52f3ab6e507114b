"""What a save keeps of the user's own: the optimizer's state, the tensors that are not trained, random states.

Nested states, such as an optimizer's state_dict, become named arrays and JSON; nothing is pickled.
"""

import random
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch

from mpitrain.api.loop.module import FlatModule
from mpitrain.api.loop.past import Apply, UserNumbers
from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.models.torch import state as torch_state

#: What JSON holds: plain values as they are, all else as an object with its "kind".
Json = object


def kept(flat: FlatModule, arrays: dict[str, Array]) -> UserNumbers:
    """This rank's user state for a save; tensors go into `arrays`. Raises BadInput naming what a save cannot hold."""
    return UserNumbers(
        kind=type(flat.optimizer).__name__,
        groups=flat.groups,
        optimizer=flattened(flat.optimizer.state_dict(), "optimizer", arrays, finite=True),
        module=flattened(flat.others, "module", arrays),  # a mask may hold −∞
        transient=sorted(flat.transient),
        extra=flattened(torch_state.extra(flat.module), "extra", arrays),
        random=flattened(_random(), "random", arrays),
    )


def taken_up(flat: FlatModule, told: UserNumbers, read: Callable[[str], Array], draws: bool) -> Apply:
    """The function that restores `told`, random states only if `draws`. Raises ValueError naming what does not fit."""
    if (told.kind, told.groups) != (mine := (type(flat.optimizer).__name__, flat.groups)):
        raise ValueError(f"optimizer: saved of {_said(told.kind, told.groups)}, this one is {_said(*mine)}")
    state, extra = rebuilt(told.optimizer, read, finite=True), rebuilt(told.extra, read)
    transient, drawn = flat.transient.union(told.transient), rebuilt(told.random, read)
    own = flat.others
    tensors = _fitting(own, rebuilt(told.module, read), transient)
    if not isinstance(state, dict) or not isinstance(extra, dict):
        raise ValueError("optimizer, extra: are no dictionaries")
    _set_random(drawn, torch.Generator(), np.random.RandomState(), random.Random())  # raises unless they are valid

    def apply() -> None:
        flat.optimizer.load_state_dict(state)
        with torch.no_grad():
            for name, tensor in tensors.items():
                own[name].copy_(tensor)
        for name, value in extra.items():
            flat.module.get_submodule(name.rpartition(".")[0]).set_extra_state(value)
        if draws:
            _set_random(drawn, torch.default_generator, np.random, random)

    return apply


def _said(kind: str, groups: list[list[str]]) -> str:
    return f"{kind} on {', '.join(name for group in groups for name in group)} in {len(groups)} groups"


def _fitting(own: dict[str, torch.Tensor], saved: object, transient: set[str]) -> dict[str, torch.Tensor]:
    """The saved tensors. Raises ValueError unless they have the names, types and shapes of the module's `own`; those
    that are `transient` are left out where they do not fit."""
    odd = (saved.keys() ^ own.keys()) - transient if isinstance(saved, dict) else own
    if odd or not isinstance(saved, dict):
        raise ValueError(f"module: saved of another one, as {', '.join(sorted(odd))} tells")
    fitting = {}
    for name in own.keys() & saved.keys():
        found, tensor = saved[name], own[name]
        if isinstance(found, torch.Tensor) and (found.shape, found.dtype) == (tensor.shape, tensor.dtype):
            fitting[name] = found
        elif name not in transient:
            raise ValueError(f"module/{name}: is not {tensor.dtype} {list(tensor.shape)}")
    return fitting


def _random() -> dict[str, object]:
    numpy_state = np.random.get_state()  # noqa: NPY002
    return {"torch": torch.get_rng_state(), "numpy": numpy_state, "python": random.getstate()}


def _set_random(drawn: Any, for_torch: torch.Generator, for_numpy: Any, for_python: Any) -> None:
    """Set the states of three generators. Raises an error of `hdf5.ERRORS` for a state that does not fit."""
    for_torch.set_state(drawn["torch"])
    for_numpy.set_state(drawn["numpy"])
    for_python.setstate(drawn["python"])


# ---- nested states


def flattened(value: object, name: str, arrays: dict[str, Array], finite: bool = False) -> Json:
    """`value` as JSON; its tensors and arrays go into `arrays`, each flat, under `name` and their keys, with slashes
    between.

    Raises BadInput naming what is neither a dictionary, list, tuple, array, tensor on the CPU, type of tensors nor a
    plain value; and a tensor that is not finite if they are to be `finite`.
    """
    if isinstance(value, np.generic):  # such as a learning rate that NumPy has computed
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict) and all(isinstance(key, str | int) for key in value):
        items = [[key, flattened(each, f"{name}/{key}", arrays, finite)] for key, each in value.items()]
        return {"kind": "dict", "items": items}
    if isinstance(value, list | tuple):
        inner = [flattened(each, f"{name}/{number}", arrays, finite) for number, each in enumerate(value)]
        return {"kind": "list" if isinstance(value, list) else "tuple", "items": inner}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        arrays[name] = value.reshape(-1)
        return {"kind": "array", "name": name, "shape": list(value.shape)}
    if isinstance(value, torch.dtype):
        return {"kind": "dtype", "name": str(value).split(".")[1]}
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type == "cpu":
        if finite and not bool(value.isfinite().all()):
            raise BadInput(f"{name}: is not finite")
        order = sorted(range(value.dim()), key=value.stride, reverse=True)  # in memory, by which products round
        arrays[name] = _array(value.detach().permute(order).contiguous().reshape(-1))
        told = {"shape": [value.size(axis) for axis in order], "dtype": str(value.dtype).split(".")[1], "order": order}
        return {"kind": "tensor", "name": name, **told}
    raise BadInput(f"{name}: a save cannot hold this {type(value).__name__}")


def _array(flat: torch.Tensor) -> Array:
    """The values; for types that NumPy lacks, such as bfloat16, their bytes."""
    try:
        return torch_state.numbers(flat)
    except TypeError:
        return torch_state.numbers(flat.view(torch.uint8))


def rebuilt(told: Json, read: Callable[[str], Array], finite: bool = False) -> object:
    """The value that `flattened` was given; `read` gives its flat arrays by name. Raises ValueError naming what
    `flattened` cannot have written, and a tensor that is not finite if they are to be `finite`."""
    if told is None or isinstance(told, bool | int | float | str):
        return told
    match told:
        case {"kind": "dtype", "name": str(name)} if isinstance(kind := getattr(torch, name, None), torch.dtype):
            return kind
        case {"kind": "dict", "items": list(items)} if all(map(_keyed, items)):
            return {key: rebuilt(each, read, finite) for key, each in items}
        case {"kind": "list" | "tuple" as kind, "items": list(items)}:
            inner = [rebuilt(each, read, finite) for each in items]
            return inner if kind == "list" else tuple(inner)
        case {"kind": "array", "name": str(name), "shape": list(shape)}:
            array = read(name)
            return array.reshape(_sizes(name, shape, array.size))
        case {"kind": "tensor", "name": str(name), "shape": list(shape), "dtype": str(dtype), "order": list(order)}:
            flat = _typed(name, torch.from_numpy(read(name)), dtype)
            if finite and not bool(flat.isfinite().all()):
                raise ValueError(f"{name} is not finite")
            tensor = flat.reshape(_sizes(name, shape, flat.numel()))
            if sorted(map(repr, order)) != sorted(map(repr, range(len(shape)))):
                raise ValueError(f"{name} has the axes {order}, expected {len(shape)} of them")
            return tensor.permute([*map(order.index, range(len(order)))])
    raise ValueError(f"its numbers hold a state that is none: {str(told)[:80]}")


def _keyed(item: object) -> bool:
    return isinstance(item, list) and len(item) == 2 and isinstance(item[0], str | int)


def _sizes(name: str, shape: list[object], elements: int) -> list[int]:
    """The shape. Raises ValueError unless it is one of this many elements."""
    sizes = [size for size in shape if isinstance(size, int) and size >= 0]
    if len(sizes) < len(shape) or prod(sizes) != elements:
        raise ValueError(f"{name} has {elements} elements, expected {shape}")
    return sizes


def _typed(name: str, flat: torch.Tensor, dtype: str) -> torch.Tensor:
    kind = getattr(torch, dtype, None)
    if isinstance(kind, torch.dtype):
        if flat.dtype is kind:
            return flat
        if flat.dtype is torch.uint8:  # the bytes of a type that NumPy lacks
            return flat.view(kind)
    raise ValueError(f"{name} is {flat.dtype}, expected {dtype}")
