"""A user's module and optimizer: the trained parameters as views of one vector."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch

from mpitrain.errors import BadInput
from mpitrain.files import checksum
from mpitrain.flat import Array, Layout, Parameter
from mpitrain.models.torch import examination
from mpitrain.models.torch import state as torch_state
from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import told_alike

SETTLED = "which ones do is settled by distribute"


class FlatModule:
    """The parameters of `module` that need a gradient, in the order in which it registers them, in `x` after `bind`.

    Raises BadInput naming the parameter or the argument that cannot be trained.
    """

    x: Array
    _noted = ""

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(module, torch.nn.Module):
            raise BadInput(f"model: a {type(module).__name__}, not a torch.nn.Module")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise BadInput(f"optimizer: a {type(optimizer).__name__}, not a torch.optim.Optimizer")
        try:
            optimizer.register_step_pre_hook(lambda *_: None).remove()
        except AttributeError:  # its constructor does not call torch.optim.Optimizer's
            line = f"optimizer: a {type(optimizer).__name__}, whose steps cannot be seen; give the one that it wraps"
            raise BadInput(line) from None
        examination.require_plain(module, "model")
        self.module, self.optimizer = module, optimizer
        named = examination.trained(module)
        if not named:
            raise BadInput("model: no parameter needs a gradient")
        self.names, self.parameters = [name for name, _ in named], [p for _, p in named]
        self._trained = {id(p) for p in self.parameters}
        self._require_no_others()
        shapes = [(name, tuple(p.shape)) for name, p in named]
        self.layout = Layout([Parameter(name, shape, ("constant", 0.0)) for name, shape in shapes])

    @property
    def learning_rate(self) -> float:
        """The learning rate of the optimizer's first group."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def one_rate(self) -> bool:
        """Whether all groups of the optimizer have the same learning rate."""
        return len({float(group["lr"]) for group in self.optimizer.param_groups}) == 1

    @property
    def others(self) -> dict[str, torch.Tensor]:
        """The module's buffers, and the parameters that are not trained, by name."""
        return {name: tensor for name, tensor in self._tensors() if id(tensor) not in self._trained}

    @property
    def transient(self) -> set[str]:
        """The names of the buffers that the module's state_dict leaves out, such as tables that `forward` enlarges."""
        return self.others.keys() - torch_state.held(self.module).keys()

    @property
    def groups(self) -> list[list[str]]:
        """The names of the parameters in each group of the optimizer."""
        names = {id(p): name for name, p in self.module.named_parameters()}
        return [[names[id(p)] for p in group["params"]] for group in self.optimizer.param_groups]

    def vector(self) -> Array:
        """A copy of the parameters as one vector."""
        return np.concatenate([torch_state.numbers(p).ravel() for p in self.parameters])

    def bind(self, x: Array) -> None:
        """Let the module and its optimizer work on the parameters in `x`."""
        self.x, views = x, self.layout.views(torch.from_numpy(x))
        self._pointers = [view.data_ptr() for view in views.values()]
        for p, view in zip(self.parameters, views.values(), strict=True):
            p.data = view

    def note(self) -> None:
        """Remember the parameters, with which the first batch is to begin."""
        self._noted = self._content

    def require_noted(self) -> None:
        """Raise BadInput if they have changed since; later they may."""
        if self._noted and self._noted != self._content:
            line = "its parameters were changed within the block, before the first batch: load or set them before it"
            raise BadInput(f"model: {line}, as the algorithm keeps a model beside them")
        self._noted = ""

    @property
    def _content(self) -> str:
        return checksum(self.x.view(np.uint8).data)

    @property
    def changes(self) -> int:
        """How often PyTorch has changed the parameters in place."""
        return sum(p._version for p in self.parameters)

    @property
    def finite(self) -> bool:
        """Whether the parameters are finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite(np.dot(self.x, self.x)))

    def release(self) -> None:
        """Copy each parameter out of the common vector, into memory of its own."""
        for p in self.parameters:
            p.data = p.data.clone()

    @contextmanager
    def gradients_through(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
        """Within this context backward adds what `function` makes of the parameters' gradients."""
        with ExitStack() as hooks:
            for p in self.parameters:
                hooks.callback(p.register_hook(function).remove)
            yield

    def start_together(self, transport: Transport) -> None:
        """Give all ranks rank 0's parameters and buffers. Collective. Raises BadInput naming a rank whose model is
        another one."""
        told = ", ".join(f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in self._tensors())
        another = "has another one than rank 0: other names, shapes or types"
        told_alike(transport, told, "the models", lambda odd, _: f"model: rank {odd} {another}")
        self.share_buffers(transport)
        vector = self.vector()
        transport.broadcast_array(vector, "rank 0's parameters")
        for p, view in zip(self.parameters, self.layout.views(torch.from_numpy(vector)).values(), strict=True):
            p.data.copy_(view)

    def share_buffers(self, transport: Transport) -> None:
        """Give all ranks rank 0's buffers, and its constants. Collective."""
        for name, tensor in self._common(transport).items():
            if tensor.numel():
                array = np.array(torch_state.numbers(tensor), order="C")
                content = transport.broadcast(array.tobytes(), f"rank 0's {name}")
                with torch.no_grad():
                    tensor.copy_(torch.from_numpy(np.frombuffer(bytearray(content), array.dtype).reshape(array.shape)))

    def average_statistics(self, transport: Transport) -> None:
        """Give all ranks the means of their running means and variances, as of batch normalisation. Collective."""
        for name, tensor in self._common(transport).items():
            if name.endswith(("running_mean", "running_var")):
                sums = np.array(torch_state.numbers(tensor), order="C")
                transport.sum(sums, f"the ranks' {name}")
                tensor.copy_(torch.from_numpy(sums / transport.size))

    def _common(self, transport: Transport) -> dict[str, torch.Tensor]:
        """The buffers and constants that all ranks have in one shape. What `forward` has made or enlarged on some of
        them, as for the longest sequence, remains each rank's own. Collective."""
        others = self.others
        own = {f"{name} {tuple(tensor.shape)} {tensor.dtype}": name for name, tensor in others.items()}
        told = transport.gather_texts("\n".join(own), "the models' buffers")
        common = set(own).intersection(*(text.split("\n") for text in told))
        return {own[each]: others[own[each]] for each in sorted(common)}

    def require_bound(self) -> None:
        """Raise BadInput naming a parameter that has got other memory, no longer needs a gradient, or needs one now and
        did not at the start; or if the optimizer has got one that is not the model's."""
        for name, p, pointer in zip(self.names, self.parameters, self._pointers, strict=True):
            if p.data_ptr() != pointer:
                raise BadInput(f"model: {name} has got other memory within the block, as .to() or .half() give it")
            if not p.requires_grad:
                raise BadInput(f"model: {name} needs no gradient any more: {SETTLED}")
        if new := next((name for name, p in examination.trained(self.module) if id(p) not in self._trained), None):
            if new in self.names:
                raise BadInput(f"model: {new} is another tensor than at the start, as of load_state_dict(assign=True)")
            raise BadInput(f"model: {new} needs a gradient, and did not at the start: {SETTLED}")
        self._require_no_others()

    def _require_no_others(self) -> None:
        own = {id(p) for p in self.module.parameters()}
        if any(id(p) not in own for group in self.optimizer.param_groups for p in group["params"]):
            raise BadInput("optimizer: has a parameter that is not the model's")

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.module.named_parameters()
        yield from self.module.named_buffers()
