"""Any torch.nn.Module as a model."""

import copy
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import prod
from typing import Any, Literal, SupportsFloat

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch.nn import functional

from mpitrain.errors import BadInput, blaming
from mpitrain.flat import Array, on_host
from mpitrain.models.layer import with_gradient
from mpitrain.models.model import Draws, Model, Ready
from mpitrain.models.torch import examination
from mpitrain.models.torch import state as torch_state
from mpitrain.models.torch.binding import Binding
from mpitrain.models.torch.examination import Loss
from mpitrain.models.torch.place import HOST, CpuPlace
from mpitrain.models.torch.start import keep_memory
from mpitrain.models.torch.statistics import Statistics
from mpitrain.sampling.batch import Batch, SampleForm
from mpitrain.sampling.rng import stream

Make = Callable[[int], object]

MIX = 2654435761  # an odd number: shares of one minibatch have different seeds, of which PyTorch takes 32 bits
DTYPES = {"float32": torch.float32, "float64": torch.float64}
APART = 1e-3  # relative distance of outputs, far more than rounding makes
TRIED = 1 << 26  # most parameters of a module that is made twice more to see whether it remembers
#: Seeds what a module draws while it is evaluated, the same numbers every time.
EVALUATION: list[int] = stream(0, "evaluation").integers(1 << 32, size=3).tolist()


class TorchModel(examination.Examined):
    """The module that `make(seed)` makes, with `loss` (outputs, targets int64) → mean and `l2`/2·‖w‖² over parameters
    of two and more dimensions, with `l2_biases` over all.

    `input_shape` is that of one example as corpora have it. The `form` of samples is by default one class and numbers,
    which are an image if there are three axes: images [h, w, c] reach the module as [n, c, h, w] in channels-last
    memory, other numbers as they are, whole ones as int64. `classes` is 0 where targets are no classes, which takes a
    `loss`; `metric` (outputs, targets) → mean is then the figure of `merit`, of which less is better, by the name
    `merit`.
    Parameters that need no gradient are constants: `make(seed)` makes them, and no algorithm changes them. The module,
    its vectors and its minibatches lie in `place`. It is tried out in `dtype`, that of the training. Raises BadInput
    naming the module's part that cannot be trained.
    """

    def __init__(
        self,
        make: Make,
        input_shape: tuple[int, ...],
        classes: int,
        *,
        name: str = "model",
        output: Literal["softmax", "logistic"] = "softmax",
        loss: Loss | None = None,
        l2: float = 0.0,
        l2_biases: bool = False,
        seed: int = 1,
        bf16: bool = False,
        place: CpuPlace = HOST,
        form: SampleForm | None = None,
        metric: Loss | None = None,
        merit: str = "",
        dtype: DTypeLike = np.float32,
    ) -> None:
        keep_memory()
        self.name, self.input_shape, self.classes = name, tuple(input_shape), classes
        self.output = output
        self.form = form or SampleForm(self.input_shape, pixels=len(self.input_shape) == 3)
        if self.form.targets and output == "logistic":
            raise BadInput("model.output = 'logistic': not of tokens, whose targets exclude one another")
        self.own_loss = loss is not None
        self.loss = loss or (_of_each if self.form.targets else LOSSES[output])
        self.metric, self.merit = metric, merit or ("error" if classes else "loss")
        self._make, self._seed, self._bf16, self.place = make, seed, bf16, place
        self.dtype = np.dtype(dtype)  # that of the module now
        with place.computing():
            self.module = torch_state.cast(self._own(seed), DTYPES[self.dtype.name]).to(place.device)
        for layer in self.module.modules() if place.device.type == "cpu" else ():
            if isinstance(layer, torch.nn.GroupNorm):
                layer.register_forward_pre_hook(_with_gradients)
        self._binding = Binding(examination.trained(self.module), l2, l2_biases, place)
        self.layout = self._binding.layout  # as the module registers them
        self.statistics = Statistics(self.module, partial(self._outputs, training=True))
        self.measures = bool(self.statistics)
        self.holds_buffers = self.measures or bool(self._constants())
        self._early = True
        self._in_pairs: set[bool] = set()
        with examination.drawing(seed), place.computing():
            examination.examine(self)
            self._in_pairs = examination.in_pairs(self)
            self._early = examination.may_step_early(self)

    def measured(self, parameters: Array) -> bool:
        """Whether the statistics, if it has any, belong to these parameters."""
        return self.statistics.are_of(parameters)

    def initial(self, seed: int, dtype: DTypeLike = np.float32) -> Array:
        """The parameters of the module that `make(seed)` makes."""
        vector = np.empty(self.layout.size, dtype)
        made = dict(examination.trained(self._made(seed)))
        for name, view in self.layout.views(vector).items():
            view[...] = made[name].detach().numpy()
        return vector

    def loss_and_gradient(
        self, parameters: Array, out: Array, batch: Batch, draws: Draws | None = None, on_ready: Ready | None = None
    ) -> SupportsFloat:
        """Mean loss of the minibatch, without the l2 term; the mean gradient, with it, overwrites `out`.

        What the module may draw from is seeded by `draws` and the place of the first sample in their share.
        """
        with self.place.computing():
            self._bind(parameters, training=True)
            if draws is not None:
                own = (draws.share[0] if draws.share else 0) * MIX
                self.place.seed([(int(draws.rng.integers(1 << 32)) + own) % (1 << 32) for _ in range(3)])
            with self._autocast():
                loss = self.loss(self._outputs(batch.inputs, training=True), self.targets(batch))
            self._binding.backward(loss.backward, out, on_ready if self._early else None)
            if on_ready is not None and not self._early:
                on_ready(slice(0, self.layout.size))
            return self.place.number(loss)

    def evaluate(self, parameters: Array, batch: Batch) -> tuple[float, float]:
        """Summed loss and figure of merit: by default the number of examples whose largest output is not the target's;
        of several targets of an example, the fraction counts."""
        outputs, count = self.outputs(parameters, batch.inputs), len(batch.targets)
        with self.place.computing(), torch.no_grad():
            z, targets = self.place.tensor(outputs), self.targets(batch)
            loss = self.loss(z, targets).item() * count
            if self.metric is not None:
                with blaming("model.metric", "cannot be computed"):
                    return loss, float(self.metric(z, targets)) * count
        if not self.classes:
            return loss, loss
        return loss, int((outputs.argmax(axis=-1) != batch.targets).sum()) / prod(self.form.targets)

    def outputs(self, parameters: Array, inputs: Array) -> Array:
        """The module's outputs [n, classes], of tokens [n, window, classes], with the statistics that belong to the
        parameters if they are known."""
        with self.place.computing(), torch.no_grad():
            self._bind(parameters, training=False)
            with self._autocast():
                outputs = self._outputs(inputs, training=False)
                return self.place.array(outputs.to(DTYPES[self.dtype.name]))

    def measure(self, parameters: Array, inputs: Array, number: int, count: int) -> None:
        """Take the minibatch `number` of `count` of training data into the statistics of normalisation; after the last
        one they belong to these parameters."""
        with self.place.computing():
            self._bind(parameters, training=False)
            if number == 0:
                self.statistics.begin()
            with self._autocast():
                self.statistics.observe(inputs)
        if number == count - 1:
            self.statistics.belong_to(parameters)

    def kept(self, parameters: Array) -> dict[str, Array]:
        """What the module needs beside these parameters, by its names in the module's state_dict: constants, and the
        statistics of normalisation where they belong to them."""
        names = self._constants() | (self.statistics.names() if self.measured(parameters) else set())
        state = torch_state.held(self.module)
        return {name: self.place.copied(state[name]) for name in sorted(names & state.keys())}

    def restore(self, kept: Mapping[str, Array], parameters: Array) -> None:
        """Take back what `kept` has given for these parameters. Raises BadInput naming what does not fit."""
        with self.place.computing():
            self._convert(parameters.dtype)
            state = torch_state.held(self.module)
            for name, array in kept.items():
                if name not in state or not torch_state.of_one_kind(state[name], array):
                    found = f"{array.size} elements of {array.dtype}"
                    raise BadInput(f"{self.name}: has no {name} of {found}, which the checkpoint holds")
                torch_state.fill(state[name], array)
        if self.statistics.names() <= kept.keys():
            self.statistics.belong_to(parameters)

    def remembers(self) -> bool:
        """Whether a module that has trained and one that is made anew, given its tensors, differ in their outputs. Not
        tried where that takes long, as for what is compiled, and would be anew, or needs a GPU."""
        if self.layout.size > TRIED or self.place.device.type != "cpu" or "torch._dynamo" in sys.modules:
            return False
        used, fresh = (torch_state.cast(self._made(self._seed), DTYPES[self.dtype.name]) for _ in range(2))
        x = self.inputs(examination.two_samples(self).inputs)

        def evaluated(module: torch.nn.Module) -> Array:
            HOST.seed(EVALUATION)
            return HOST.copied(module.eval()(x).to(DTYPES[self.dtype.name]))

        with examination.drawing(self._seed), torch.no_grad():
            try:
                _move(used)
                used.train()(x)  # neither with the initial parameters nor with those that are evaluated
                _move(used)
                first, again = evaluated(used), evaluated(used)
            except Exception:  # perhaps it takes no such parameters
                return False
            try:
                tensors = torch_state.held(fresh)
                for name, tensor in torch_state.held(used).items():
                    torch_state.fill(tensors[name], torch_state.numbers(tensor))
                other = evaluated(fresh)
            except Exception:  # only training makes it whole
                return True
        return np.array_equal(first, again) and bool(np.linalg.norm(first - other) > APART * np.linalg.norm(other))

    def standalone(self, parameters: Array) -> torch.nn.Module:
        """A module of its own, on the CPU, with these parameters and what belongs to them, in evaluation mode."""
        module = torch_state.cast(self._made(self._seed), DTYPES[parameters.dtype.name])
        state = {**torch_state.held(module), **dict(examination.trained(module))}
        views = self.layout.views(np.asarray(on_host(parameters)))
        for name, array in {**views, **self.kept(parameters)}.items():
            torch_state.fill(state[name], array)
        return module.eval()

    def _own(self, seed: int) -> torch.nn.Module:
        """The module to train. If what is made next has the same tensors in it, all modules are copies."""
        module, again, make = self._made(seed), self._made(seed), self._make
        if not torch_state.share(module, again):
            examination.require_repeated(module, again, self.name)
            return module
        self._make = lambda seed: copy.deepcopy(make(seed))
        with blaming(self.name, "returns the same tensors each time, which cannot be copied"):
            return copy.deepcopy(module)

    def _made(self, seed: int) -> torch.nn.Module:
        with examination.drawing(seed):
            example = self.inputs(HOST.put(self.form.room(2, np.float32, np.zeros).inputs))
            return examination.made(self._make, seed, self.name, example)

    def _bind(self, parameters: Array, training: bool) -> None:
        self._convert(parameters.dtype)
        self._binding.bind(parameters)
        self.switch(training)
        if not training:
            self.place.seed(EVALUATION)

    def _outputs(self, inputs: Array, training: bool) -> torch.Tensor:
        """The module's outputs; `training`: layers that normalise are in training. One sample that it cannot take alone
        is computed, and normalised, with a copy of itself."""
        x = self.inputs(inputs)
        if len(x) == 1 and training in self._in_pairs:
            return self.module(torch.cat([x, x]))[:1]
        outputs: torch.Tensor = self.module(x)
        return outputs

    def _constants(self) -> set[str]:
        """The names, as in state_dict, of parameters that need no gradient and of buffers that are no statistics."""
        trained = {name for name, _ in examination.trained(self.module, all_names=True)}
        return torch_state.held(self.module).keys() - trained - self.statistics.names()

    def _convert(self, dtype: np.dtype) -> None:
        if dtype != self.dtype:
            torch_state.cast(self.module, DTYPES[dtype.name])
            self.dtype = dtype

    def _autocast(self) -> AbstractContextManager[object]:
        return self.place.bf16() if self._bf16 else nullcontext()


def _move(module: torch.nn.Module) -> None:
    """Give the module other parameters."""
    for _, p in examination.trained(module):
        p.data = 1.25 * p.data + 0.01


def standalone(model: Model, parameters: Array) -> torch.nn.Module:
    """A module with these parameters. Raises BadInput naming a model that is not one of PyTorch's."""
    if not isinstance(model, TorchModel):
        raise BadInput(f"{model.name}: is no module of PyTorch's")
    return model.standalone(parameters)


def _with_gradients(norm: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The inputs of a group normalisation `with_gradient`; None where they need not be changed. Code of
    `torch.compile` does not crash, and is left as it is."""
    if all(getattr(x, "requires_grad", True) for x in inputs) or torch.compiler.is_compiling():
        return None
    if not torch.is_grad_enabled() or not any(p.requires_grad for p in norm.parameters()):
        return None
    return tuple(with_gradient(x) if torch.is_tensor(x) and x.is_floating_point() else x for x in inputs)


def _of_each(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over all targets [n, …] of outputs [n, …, classes], as in models of tokens."""
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def _logistic(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of independent logistic outputs, summed over classes."""
    wanted = functional.one_hot(targets, outputs.shape[1]).to(outputs.dtype)
    return functional.binary_cross_entropy_with_logits(outputs, wanted, reduction="sum") / len(targets)


LOSSES: dict[str, Loss] = {"softmax": functional.cross_entropy, "logistic": _logistic}
