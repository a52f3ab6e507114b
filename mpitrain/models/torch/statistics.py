"""The running statistics of batch normalisation, measured anew for the parameters that are evaluated.

What is evaluated, saved and exported are often other weights than the ones that were trained: a centre, an average, the
mean over ranks. The statistics that training collects belong to none of them. So training leaves the statistics alone;
before an evaluation they are measured on training data with the very parameters that are evaluated, as means of the
minibatches' moments ("precise BN": Wu & Johnson 2021, Rethinking "Batch" in BatchNorm, §3.1). They depend on the
parameters and the data only, not on algorithm, ranks, or when an evaluation takes place.
"""

from collections.abc import Callable

import torch
import xxhash
from torch.nn.modules.batchnorm import _NormBase

from mpitrain.flat import Array, on_host


class Statistics:
    """The statistics of every layer of `module` that normalises by the minibatch while the module trains.

    `forward` computes the module's outputs. A layer that its module holds in evaluation mode is left as it is.
    """

    def __init__(self, module: torch.nn.Module, forward: Callable[[Array], torch.Tensor]) -> None:
        self._module = module.train()
        norms = [m for m in module.modules() if isinstance(m, _NormBase)]
        self._norms = [m for m in norms if m.training and m.running_mean is not None]
        self._forward, self._observed, self._digest = forward, 0, ""
        for norm in self._norms:
            norm.momentum = 0.0  # training changes nothing

    def __bool__(self) -> bool:
        return bool(self._norms)

    def names(self) -> set[str]:
        """The buffers that hold them, by all their names in the module's state_dict."""
        norms = set(self._norms)
        every = [(name, m) for name, m in self._module.named_modules(remove_duplicate=False) if m in norms]
        return {".".join(filter(None, (name, key))) for name, norm in every for key, _ in norm.named_buffers()}

    def begin(self) -> None:
        """Forget what was measured."""
        self._observed, self._digest = 0, ""
        for norm in self._norms:
            norm.reset_running_stats()

    def observe(self, inputs: Array) -> None:
        """Take in the moments of another minibatch; the module is in evaluation mode, with the parameters bound."""
        self._observed += 1
        for norm in self._norms:
            norm.momentum = 1.0 / self._observed  # the mean of all minibatches so far
            norm.train()
        try:
            with torch.no_grad():
                self._forward(inputs)
        finally:
            for norm in self._norms:
                norm.momentum = 0.0
                norm.eval()

    def belong_to(self, parameters: Array) -> None:
        """Note that the statistics that were measured or restored are those of these parameters."""
        self._digest = _digest(parameters)

    def are_of(self, parameters: Array) -> bool:
        """Whether the statistics are those of these parameters."""
        return not self._norms or self._digest == _digest(parameters)


def _digest(parameters: Array) -> str:
    return xxhash.xxh3_128_hexdigest(on_host(parameters).tobytes())
