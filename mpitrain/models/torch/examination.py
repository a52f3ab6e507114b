"""Examine a user's module before it is trained: what cannot be trained is refused, by name."""

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
import xxhash
from torch.nn.parameter import is_lazy

from mpitrain.errors import BadInput, blaming
from mpitrain.flat import Array, on_host
from mpitrain.models.model import Draws, Model
from mpitrain.models.torch import state as torch_state
from mpitrain.models.torch.binding import Named
from mpitrain.models.torch.place import HOST, CpuPlace
from mpitrain.models.torch.statistics import Statistics
from mpitrain.sampling.batch import Batch, SampleForm
from mpitrain.sampling.rng import stream, undisturbed

FLOATS = (torch.float32, torch.float64)
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Examined(Model):
    """A module with its loss and its vectors, as it is examined."""

    module: torch.nn.Module
    statistics: Statistics
    place: CpuPlace
    form: SampleForm
    loss: Loss
    dtype: np.dtype
    training = True

    def inputs(self, inputs: Array) -> torch.Tensor:
        """The array [n, *input_shape] as the module gets it; it shares the memory."""
        x = self.place.tensor(inputs.reshape(len(inputs), *self.input_shape))
        if self.form.dtype is not None:
            return x.long()
        return x.permute(0, 3, 1, 2) if self.form.pixels else x

    def targets(self, batch: Batch) -> torch.Tensor:
        """The minibatch's targets as the loss gets them."""
        targets = self.place.tensor(batch.targets)
        return targets if self.form.target_dtype is None else targets.long()

    def current(self) -> Array:
        """A copy of the parameters that the module has now, in host memory."""
        return np.concatenate([self.place.copied(p).ravel() for _, p in trained(self.module)])

    def switch(self, training: bool) -> None:
        """Let the module train or evaluate."""
        if training != self.training:
            self.module.train(training)
            self.training = training


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Seed the generators that a module's constructor may draw from; afterwards they go on where they were."""
    with undisturbed():
        HOST.seed([int(stream(seed, "initial").integers(1 << 32))] * 3)
        yield


def made(make: Callable[[int], object], seed: int, name: str, example: torch.Tensor) -> torch.nn.Module:
    """The module that `make(seed)` makes, all its parameters with shapes. Raises BadInput."""
    with blaming(name, "cannot be built"):
        module = make(seed)
        if not isinstance(module, torch.nn.Module):
            raise BadInput(f"{name}: returned {type(module).__name__}, not a torch.nn.Module")
        if any(map(is_lazy, [*module.parameters(), *module.buffers()])):
            with torch.no_grad():
                module(example)
    require_plain(module, name)
    return module


def require_repeated(module: torch.nn.Module, again: torch.nn.Module, name: str) -> None:
    """Raise BadInput naming a buffer that no checkpoint holds and that is not the same when the module is made again,
    as it is for other ranks, evaluations and exports."""
    held, others = torch_state.held(module), dict(again.named_buffers())
    for each, buffer in module.named_buffers():
        values = [None if b is None else torch_state.numbers(b).tobytes() for b in (buffer, others.get(each))]
        if each not in held and values[0] != values[1]:
            raise BadInput(f"{name}: the buffer {each} is not persistent, and built with other values each time")


def trained(module: torch.nn.Module, all_names: bool = False) -> list[Named]:
    """The parameters that need a gradient; one that several layers share is there once, by its first name, unless
    `all_names` are wanted."""
    return [(name, p) for name, p in module.named_parameters(remove_duplicate=not all_names) if p.requires_grad]


def examine(model: Examined) -> None:
    """Raise BadInput unless the module's outputs fit the classes in training and in evaluation and its loss has a
    gradient, or if it changes a parameter, or a buffer that is not a statistic of normalisation."""
    module, batch = model.module, two_samples(model)
    with blaming(model.name, "cannot be trained"):
        before = _state(model)
        outputs = module(model.inputs(batch.inputs))
        _require_outputs(model, outputs)
        where = "model.loss" if model.own_loss and outputs.requires_grad else model.name
        with blaming(where, "cannot be computed"):
            loss = model.loss(outputs, model.targets(batch))
        if not isinstance(loss, torch.Tensor) or loss.shape != () or not loss.requires_grad:
            raise BadInput(f"{where}: the loss is no scalar tensor with a gradient")
    _require_unchanged(model, before, "training")
    with blaming(model.name, "cannot be evaluated"):
        model.switch(training=False)
        with torch.no_grad():
            _require_outputs(model, module(model.inputs(batch.inputs)))
        _require_unchanged(model, before, "evaluation")
        model.evaluate(model.place.put(model.current()), batch)  # the parameters get other memory here


def _require_outputs(model: Examined, outputs: object) -> None:
    found = type(outputs).__name__
    wanted = [2, *model.form.targets, model.classes] if model.classes else [2, "..."]
    if isinstance(outputs, torch.Tensor):
        shape = list(outputs.shape)
        if outputs.is_floating_point() and (shape == wanted or (not model.classes and shape[:1] == [2])):
            return
        found = f"of shape {list(outputs.shape)}"
        found += "" if outputs.is_floating_point() else f" and type {str(outputs.dtype).removeprefix('torch.')}"
    mode = "" if model.module.training else " in evaluation mode"
    what = f"[{', '.join(map(str, wanted))}]{' (classes)' * bool(model.classes)}"
    raise BadInput(f"{model.name}: the outputs for 2 samples{mode} are {found}, not {what} of floats")


def _state(model: Examined) -> dict[str, bytes]:
    """Parameters with their memory, buffers that are no statistics, and what layers call extra state, by name."""
    statistics = model.statistics.names()
    buffers = {name: buffer for name, buffer in model.module.named_buffers() if name not in statistics}
    return {
        **{f"parameter {name}": _placed(model, p) for name, p in model.module.named_parameters()},
        **{f"buffer {name}": model.place.copied(buffer).tobytes() for name, buffer in buffers.items()},
        **{f"extra state {name}": written(value) for name, value in torch_state.extra(model.module).items()},
    }


def _placed(model: Examined, p: torch.Tensor) -> bytes:
    """Where the parameter lies, with a checksum of its values."""
    return b"%d %b" % (p.data_ptr(), xxhash.xxh3_128_digest(model.place.copied(p).tobytes()))


def written(value: object) -> bytes:
    """The value as bytes, which are the same for equal ones; pickle's are not for tensors."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _require_unchanged(model: Examined, before: dict[str, bytes], when: str) -> None:
    for name, value in _state(model).items():
        if before.get(name) != value:
            why = "and is not a statistic of normalisation: which value belongs to averaged parameters is unknown"
            if name.startswith("parameter "):
                why = "or gets other memory: forward may compute with it, but only an algorithm may change it"
            raise BadInput(f"{model.name}: the {name} changes in {when} {why}")


def in_pairs(model: Examined) -> set[bool]:
    """Whether the module cannot take one sample alone, which has no variance: in training (True), in evaluation."""
    batch = two_samples(model)
    found = set()
    for training in (False, True):
        model.switch(training)
        try:
            with torch.no_grad(), warnings.catch_warnings(action="ignore"):
                outputs = model.module(model.inputs(batch.inputs[:1]))
            if not outputs.isfinite().all():
                found.add(training)
        except Exception:
            found.add(training)
    return found


def may_step_early(model: Examined) -> bool:
    """Whether parameters may change as soon as their gradient is final, while the backward pass goes on.

    It is tried: each part becomes NaN once its gradient is final. If it is still read, as where a layer uses a detached
    parameter, the gradients of other parameters become NaN.
    """
    batch, vector = two_samples(model), model.place.put(model.current())
    plain, poisoned = np.empty_like(vector), np.empty_like(vector)

    def spoil(part: slice) -> None:
        vector[part] = np.nan

    with blaming(model.name, "cannot be trained"):
        model.loss_and_gradient(vector, plain, batch, Draws(stream(0, "dropout")))
        model.loss_and_gradient(vector, poisoned, batch, Draws(stream(0, "dropout")), spoil)
    return bool(np.array_equal(*(np.isnan(on_host(gradient)) for gradient in (plain, poisoned))))


def two_samples(model: Examined) -> Batch:
    """Two random samples, in the module's dtype."""
    return Batch(*map(model.place.put, model.form.drawn(2, model.dtype, model.classes, stream(0, "examination"))))


def require_plain(module: torch.nn.Module, name: str) -> None:
    """Raise BadInput naming the parameter or layer that flat vectors cannot hold."""
    places: dict[int, str] = {}
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    for each, tensor in {**parameters, **buffers}.items():
        if is_lazy(tensor):
            raise BadInput(f"{name}: {each} has no shape yet; call the module once, which gives it one")
        if tensor.device.type != "cpu":
            raise BadInput(f"{name}: {each} lies on {tensor.device}; a module is built on the CPU")
        if each in parameters and tensor.dtype not in FLOATS:
            raise BadInput(f"{name}: {each} is {str(tensor.dtype).removeprefix('torch.')}, not float32")
        try:
            torch_state.numbers(tensor)
        except (TypeError, RuntimeError):
            kind = f"{tensor.layout} of {tensor.dtype}".replace("torch.", "")
            raise BadInput(f"{name}: {each} is {kind}, which NumPy's arrays cannot hold") from None
    if len(dtypes := {p.dtype for p in parameters.values()}) > 1:
        odd = next(each for each, p in parameters.items() if p.dtype is torch.float64)
        raise BadInput(f"{name}: {odd} is float64, others are float32: one dtype is trained ({len(dtypes)} found)")
    for each, tensor in {**parameters, **buffers}.items():
        other = places.setdefault(tensor.untyped_storage().data_ptr(), each) if tensor.numel() else each
        if other != each and each in parameters:
            why = "are two parameters in one memory; to tie them, let both names mean one"
            raise BadInput(f"{name}: {each} and {other} {why}")
        if other != each and other in parameters and parameters[other].requires_grad:
            why = "and would not follow it; compute it in forward"
            raise BadInput(f"{name}: the buffer {each} lies in the memory of the parameter {other}, {why}")
    for each, layer in module.named_modules():
        if getattr(layer, "sparse", False) is True:
            raise BadInput(f"{name}: {each or 'the module'} has sparse gradients; build it with sparse=False")
        if isinstance(layer, torch.nn.Embedding | torch.nn.EmbeddingBag) and layer.max_norm is not None:
            raise BadInput(f"{name}: {each or 'the module'} changes its weights in forward; build it without max_norm")
    if not any(p.requires_grad for p in parameters.values()):
        raise BadInput(f"{name}: has no parameter to train")
