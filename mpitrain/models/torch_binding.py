"""A PyTorch module's parameters as views of a flat vector, and its gradients written to another one as they get final.

Autograd sums the gradient of a parameter over everything that uses it, then calls the parameter's hook, which copies it
to its place. That costs one read and one write; were `p.grad` itself a view of the vector, it would first be set to
zero, and autograd would then add to it.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch

from mpitrain.flat import Array, Layout, Parameter
from mpitrain.models.model import Ready

#: Least elements of a part that is reported, so that biases and scales are not messages of their own.
PART = 1 << 15

Named = tuple[str, torch.nn.Parameter]


class Binding:
    """The trained parameters, in the order in which the module registers them, with `l2`/2·‖w‖² over those of two and
    more dimensions, with `l2_biases` over all.

    Parts of the vector are reported last ones first, each once: a part that is final early waits for those after it.
    """

    def __init__(self, parameters: Sequence[Named], l2: float, l2_biases: bool = False) -> None:
        self._parameters, self._l2, self._l2_biases = [p for _, p in parameters], l2, l2_biases
        shapes = [(name, tuple(p.shape)) for name, p in parameters]
        self.layout = Layout([Parameter(n, shape, ("constant", 0.0), decay=len(shape) > 1) for n, shape in shapes])
        self._parts, self._part_of = parts(self.layout)
        self._bound: Array | None = None
        self._bound_gradients: Array | None = None
        self._gradients: list[torch.Tensor] = []
        self._on_ready: Ready | None = None
        for number, p in enumerate(self._parameters):
            p.register_post_accumulate_grad_hook(partial(self._final, number))

    def bind(self, vector: Array) -> None:
        """Let the module compute with the parameters in `vector`."""
        if vector is not self._bound:  # set at the end: the views are whole then
            for p, view in zip(self._parameters, self._views(vector), strict=True):
                p.data = view
            self._bound = vector

    def backward(self, run: Callable[[], object], gradients: Array, on_ready: Ready | None) -> None:
        """Call `run`, which computes the gradients; they overwrite the vector, and `on_ready` gets its parts."""
        if gradients is not self._bound_gradients:
            self._gradients, self._bound_gradients = self._views(gradients), gradients
        self._on_ready = on_ready
        self._missing, self._next = [0] * len(self._parts), 0
        for part in self._part_of:
            self._missing[part] += 1
        self._seen = [False] * len(self._parameters)
        try:
            run()
            for number, seen in enumerate(self._seen):
                if not seen:  # not used in this minibatch
                    self._write(number, None)
            self._report()
        finally:
            self._on_ready = None

    def _final(self, number: int, p: torch.Tensor) -> None:
        self._write(number, p.grad)
        p.grad = None
        self._report()

    def _write(self, number: int, gradient: torch.Tensor | None) -> None:
        p, place = self._parameters[number].detach(), self._gradients[number]
        decays = bool(self._l2) and (self._l2_biases or self.layout.parameters[number].decay)
        if gradient is None:
            place.zero_()
            gradient = place
        if decays:
            torch.add(gradient, p, alpha=self._l2, out=place)
        elif gradient is not place:
            place.copy_(gradient)
        self._seen[number] = True
        self._missing[self._part_of[number]] -= 1

    def _report(self) -> None:
        while self._next < len(self._parts) and not self._missing[self._next]:
            self._next += 1
            if self._on_ready is not None:
                self._on_ready(self._parts[self._next - 1])

    def _views(self, vector: Array) -> list[torch.Tensor]:
        return list(self.layout.views(torch.from_numpy(vector)).values())


def parts(layout: Layout, least: int = PART) -> tuple[list[slice], list[int]]:
    """Neighbouring parameters merged into slices of `least` elements or more, last ones first, and the number of the
    slice of each parameter."""
    merged: list[slice] = []
    part_of: list[int] = []
    for parameter in reversed(layout.parameters):
        own = layout.slices[parameter.name]
        if merged and merged[-1].stop - merged[-1].start < least:
            merged[-1] = slice(own.start, merged[-1].stop)
        else:
            merged.append(own)
        part_of.append(len(merged) - 1)
    return merged, part_of[::-1]
