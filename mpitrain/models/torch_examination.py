"""Examine a user's module before it is trained: what cannot be trained is refused, by name."""

import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from mpitrain.data.batch import Batch
from mpitrain.errors import BadInput, first_line
from mpitrain.flat import on_host
from mpitrain.models.torch_binding import Named
from mpitrain.rng import stream

if TYPE_CHECKING:
    from mpitrain.models.torch_module import TorchModel

FLOATS = (torch.float32, torch.float64)


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Seed the generators that a module's constructor may draw from: PyTorch's, NumPy's old one and Python's."""
    key = int(stream(seed, "initial").integers(1 << 32))
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key)
        np.random.seed(key)  # noqa: NPY002
        random.seed(key)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


@contextmanager
def blaming(name: str, what: str) -> Iterator[None]:
    """Turn an exception of the user's code into BadInput with its last place there."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_library(f.filename)]
        where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        raise BadInput(f"{name}: {what}: {type(error).__name__}: {first_line(error)}{where}") from error


def _is_library(path: str) -> bool:
    return "site-packages" in path or __file__.rpartition("models")[0] in path or path.startswith("<")


def made(make: Callable[[int], object], seed: int, name: str, example: torch.Tensor) -> torch.nn.Module:
    """The module that `make(seed)` makes, all its parameters with shapes. Raises BadInput."""
    with blaming(name, "cannot be built"):
        module = make(seed)
        if not isinstance(module, torch.nn.Module):
            raise BadInput(f"{name}: returned {type(module).__name__}, not a torch.nn.Module")
        if any(map(is_lazy, [*module.parameters(), *module.buffers()])):
            with torch.no_grad():
                module(example)
    _require_plain(module, name)
    return module


def trained(module: torch.nn.Module, all_names: bool = False) -> list[Named]:
    """The parameters that need a gradient; one that several layers share is there once, by its first name, unless
    `all_names` are wanted."""
    return [(name, p) for name, p in module.named_parameters(remove_duplicate=not all_names) if p.requires_grad]


def examine(model: "TorchModel") -> None:
    """Raise BadInput unless the module's outputs fit the classes and its loss has a gradient, or if a buffer changes
    while it trains that is not a statistic of normalisation."""
    module, batch = model.module, _batch(model)
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with blaming(model.name, "cannot be trained"):
        outputs = module(model.inputs(batch.inputs))
        if not isinstance(outputs, torch.Tensor) or outputs.shape != (2, model.classes):
            found = f"of shape {list(outputs.shape)}" if isinstance(outputs, torch.Tensor) else type(outputs).__name__
            raise BadInput(f"{model.name}: the outputs for 2 samples are {found}, not [2, {model.classes}] (classes)")
        loss = model.loss(outputs, model.targets(batch))
        if not isinstance(loss, torch.Tensor) or loss.shape != () or not loss.requires_grad:
            raise BadInput(f"{model.name}: the loss is no scalar tensor with a gradient")
    statistics = model.statistics.names()
    for name, buffer in module.named_buffers():
        if name not in statistics and not torch.equal(before[name], buffer):
            raise BadInput(
                f"{model.name}: the buffer {name} changes in training and is not a statistic of normalisation: "
                "which value belongs to averaged parameters is unknown"
            )


def may_step_early(model: "TorchModel") -> bool:
    """Whether parameters may change as soon as their gradient is final, while the backward pass goes on.

    Tried out: were they still read, NaN in their place would reach the gradients of others. So it does where a layer
    uses a detached parameter, for example.
    """
    batch, vector = _batch(model), model.place.put(model.current())
    plain, poisoned = np.empty_like(vector), np.empty_like(vector)

    def spoil(part: slice) -> None:
        vector[part] = np.nan

    with blaming(model.name, "cannot be trained"):
        model.loss_and_gradient(vector, plain, batch, stream(0, "dropout"))
        model.loss_and_gradient(vector, poisoned, batch, stream(0, "dropout"), spoil)
    return bool(np.array_equal(*(np.isnan(on_host(gradient)) for gradient in (plain, poisoned))))


def _batch(model: "TorchModel") -> Batch:
    draw = stream(0, "examination")
    inputs = draw.standard_normal((2, *model.input_shape)).astype(model.current().dtype)
    batch = Batch(inputs, np.arange(2, dtype=np.int32) % model.classes)
    return Batch(*map(model.place.put, batch))


def _require_plain(module: torch.nn.Module, name: str) -> None:
    """Raise BadInput naming the parameter or layer that flat vectors cannot hold."""
    places: dict[int, str] = {}
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    for each, tensor in {**parameters, **buffers}.items():
        if tensor.device.type != "cpu":
            raise BadInput(f"{name}: {each} lies on {tensor.device}; a module is built on the CPU")
        if tensor.dtype is torch.bfloat16 or (each in parameters and tensor.dtype not in FLOATS):
            raise BadInput(f"{name}: {each} is {str(tensor.dtype).removeprefix('torch.')}, not float32")
    if len(dtypes := {p.dtype for p in parameters.values()}) > 1:
        odd = next(each for each, p in parameters.items() if p.dtype is torch.float64)
        raise BadInput(f"{name}: {odd} is float64, others are float32: one dtype is trained ({len(dtypes)} found)")
    for each, p in parameters.items():
        if p.numel() and (other := places.setdefault(p.untyped_storage().data_ptr(), each)) != each:
            raise BadInput(
                f"{name}: {each} and {other} are two parameters in one memory; to tie them, let both names mean one"
            )
    for each, layer in module.named_modules():
        if getattr(layer, "sparse", False) is True:
            raise BadInput(f"{name}: {each} has sparse gradients; build it with sparse=False")
    if not any(p.requires_grad for p in parameters.values()):
        raise BadInput(f"{name}: has no parameter to train")
