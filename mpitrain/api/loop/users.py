"""What a save keeps of the user's own: the optimizer's state, the tensors that are not trained, random states."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mpitrain.api.loop.module import FlatModule
from mpitrain.api.loop.past import Apply, UserNumbers
from mpitrain.api.loop.tree import flattened, rebuilt
from mpitrain.flat import Array
from mpitrain.models.torch import state as torch_state


def kept(flat: FlatModule, arrays: dict[str, Array]) -> UserNumbers:
    """This rank's, with its tensors in `arrays`. Raises BadInput naming what a save cannot hold."""
    return UserNumbers(
        kind=type(flat.optimizer).__name__,
        groups=flat.groups,
        optimizer=flattened(flat.optimizer.state_dict(), "optimizer", arrays, finite=True),
        module=flattened(flat.others, "module", arrays),  # a mask may hold −∞
        extra=flattened(torch_state.extra(flat.module), "extra", arrays),
        random=flattened(_random(), "random", arrays),
    )


def taken_up(flat: FlatModule, told: UserNumbers, read: Callable[[str], Array], draws: bool) -> Apply:
    """What takes them up, the random states only if `draws`. Raises ValueError naming what does not fit."""
    if (told.kind, told.groups) != (mine := (type(flat.optimizer).__name__, flat.groups)):
        raise ValueError(f"optimizer: saved of {_said(told.kind, told.groups)}, this one is {_said(*mine)}")
    state, extra = rebuilt(told.optimizer, read, finite=True), rebuilt(told.extra, read)
    tensors, drawn = _alike(flat.others, rebuilt(told.module, read)), rebuilt(told.random, read)
    if not isinstance(state, dict) or not isinstance(extra, dict):
        raise ValueError("optimizer, extra: are no dictionaries")
    _set_random(drawn, torch.Generator(), np.random.RandomState(), random.Random())  # tries them

    def apply() -> None:
        flat.optimizer.load_state_dict(state)
        with torch.no_grad():
            for name, tensor in flat.others.items():
                tensor.copy_(tensors[name])
        for name, value in extra.items():
            flat.module.get_submodule(name.rpartition(".")[0]).set_extra_state(value)
        if draws:
            _set_random(drawn, torch.default_generator, np.random, random)

    return apply


def _said(kind: str, groups: list[list[str]]) -> str:
    return f"{kind} on {', '.join(name for group in groups for name in group)} in {len(groups)} groups"


def _alike(own: dict[str, torch.Tensor], saved: object) -> dict[str, torch.Tensor]:
    """The saved tensors, which have the names, types and shapes of the module's own."""
    if not isinstance(saved, dict) or saved.keys() != own.keys():
        odd = set(own) ^ set(saved) if isinstance(saved, dict) else own
        raise ValueError(f"module: saved of another one, as {', '.join(sorted(odd))} tells")
    for name, tensor in own.items():
        if not isinstance(saved[name], torch.Tensor) or (saved[name].shape, saved[name].dtype) != (
            tensor.shape,
            tensor.dtype,
        ):
            raise ValueError(f"module/{name}: is not {tensor.dtype} {list(tensor.shape)}")
    return saved


def _random() -> dict[str, object]:
    numpy_state = np.random.get_state()  # noqa: NPY002
    return {"torch": torch.get_rng_state(), "numpy": numpy_state, "python": random.getstate()}


def _set_random(drawn: Any, for_torch: torch.Generator, for_numpy: Any, for_python: Any) -> None:
    """Raises an error of `hdf5.ERRORS` for what is no state of theirs."""
    for_torch.set_state(drawn["torch"])
    for_numpy.set_state(drawn["numpy"])
    for_python.setstate(drawn["python"])
