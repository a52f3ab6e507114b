"""A PyTorch module's parameters as views of a flat vector, and its gradients written to another one as they get final.

Autograd sums the gradient of a parameter over everything that uses it and leaves it in `p.grad`, from where it is
copied to its place, or handed over. That costs one read and one write; were `p.grad` itself a view of the vector, it
would first be set to zero, and autograd would then add to it.
"""

from collections.abc import Callable, Sequence
from itertools import groupby

import torch

from mpitrain.flat import Array, Layout, Parameter
from mpitrain.models.model import Consumer, Ready
from mpitrain.models.torch.place import HOST, CpuPlace

#: The least elements of a part that is reported, so that biases and scales are not messages of their own; and of a
#: parameter with a hook, which costs more than the copy of a small gradient.
PART = 1 << 15

Named = tuple[str, torch.nn.Parameter]


class Binding:
    """The trained parameters, in the order in which the module registers them, with `l2`/2·‖w‖² over those of two and
    more dimensions, with `l2_biases` over all.

    Parts of the vector are reported last ones first, each once: a part that is final early waits for those after it.
    The parameters and the vectors lie in one `place`.
    """

    def __init__(self, parameters: Sequence[Named], l2: float, l2_biases: bool = False, place: CpuPlace = HOST) -> None:
        self._parameters, self._l2, self._l2_biases = [p for _, p in parameters], l2, l2_biases
        self._place = place
        shapes = [(name, tuple(p.shape)) for name, p in parameters]
        self.layout = Layout([Parameter(n, shape, ("constant", 0.0), decay=len(shape) > 1) for n, shape in shapes])
        self._parts = [(part, numbers, pieces(self.layout, numbers)) for part, numbers in parts(self.layout)]
        self._bound: Array | None = None
        self._bound_gradients: Array | None = None
        self._places: list[torch.Tensor] = []
        self._on_ready: Ready | None = None
        for p in self._parameters:
            p.grad = None  # that of steps before
            if p.numel() >= PART:
                p.register_post_accumulate_grad_hook(place.hook(self._report))

    def bind(self, vector: Array) -> None:
        """Let the module compute with the parameters in `vector`."""
        if vector is not self._bound:  # set at the end: the views are whole then
            for p, view in zip(self._parameters, self._views(vector), strict=True):
                p.data = view
            self._bound = vector

    def backward(self, run: Callable[[], object], gradients: Array, on_ready: Ready | None) -> None:
        """Call `run`, which computes the gradients; they overwrite the vector, or go to a Consumer, and `on_ready` gets
        its parts."""
        if gradients is not self._bound_gradients:
            self._places, self._bound_gradients = self._views(gradients), gradients
        self._on_ready, self._next = on_ready, 0
        try:
            run()
            self._report(all_final=True)
            if any(p.grad is not None for p in self._parameters):
                raise RuntimeError("a parameter got its gradient in several pieces, as a reentrant checkpoint does it")
        finally:
            self._on_ready = None
            for p in self._parameters:
                p.grad = None

    def _report(self, all_final: bool = False) -> None:
        """Report the parts whose turn it is. With `all_final`, a parameter without a gradient is not used."""
        while self._next < len(self._parts):
            part, numbers, apart = self._parts[self._next]
            if not all_final and any(self._parameters[number].grad is None for number in numbers):
                return
            self._next += 1
            if isinstance(self._on_ready, Consumer):
                for piece in apart:
                    self._hand_over(piece, self._on_ready)
                continue
            self._write(numbers)
            if self._on_ready is not None:
                self._on_ready(part)

    def _hand_over(self, numbers: Sequence[int], consumer: Consumer) -> None:
        """Give the consumer a large gradient in its own memory, if that is contiguous; others in the vector."""
        place, first = place_of(self.layout, numbers), numbers[0]
        gradient = self._parameters[first].grad if self._parameters[first].numel() >= PART else None
        if gradient is None or not gradient.is_contiguous():
            self._write(numbers)
            return consumer(place)
        self._parameters[first].grad = None
        self._decay(first, gradient, gradient)
        return consumer.use(place, self._place.array(gradient.view(-1)))

    def _write(self, numbers: Sequence[int]) -> None:
        """Copy gradients to their places in the vector."""
        places, gradients = [], []
        for number in numbers:
            p, place = self._parameters[number], self._places[number]
            if p.grad is None:
                self._decay(number, place.zero_(), place)
            elif p.grad.layout is not torch.strided:
                name = self.layout.parameters[number].name
                raise RuntimeError(f"{name} has a sparse gradient; compute with sparse=False")
            elif not self._decay(number, p.grad, place):
                places.append(place)
                gradients.append(p.grad)
            p.grad = None
        if places:
            torch._foreach_copy_(places, gradients)

    def _decay(self, number: int, gradient: torch.Tensor, out: torch.Tensor) -> bool:
        """out ← gradient + l2·w, if l2 applies to the parameter; returns whether it does."""
        if not (self._l2 and (self._l2_biases or self.layout.parameters[number].decay)):
            return False
        torch.add(gradient, self._parameters[number].detach(), alpha=self._l2, out=out)
        return True

    def _views(self, vector: Array) -> list[torch.Tensor]:
        return list(self.layout.views(self._place.tensor(vector)).values())


def parts(layout: Layout, least: int = PART) -> list[tuple[slice, list[int]]]:
    """Neighbouring parameters merged into slices of `least` elements or more, last ones first, with their numbers."""
    merged: list[list[int]] = []
    size = least
    for number, parameter in reversed(list(enumerate(layout.parameters))):
        if size >= least:
            merged.append([])
            size = 0
        merged[-1].insert(0, number)
        size += parameter.size
    return [(place_of(layout, numbers), numbers) for numbers in merged]


def pieces(layout: Layout, numbers: Sequence[int], large: int = PART) -> list[list[int]]:
    """The numbers of neighbouring parameters, last ones first, with each one of `large` elements or more apart."""
    found = groupby(reversed(numbers), lambda number: number if layout.parameters[number].size >= large else None)
    return [sorted(each) for _, each in found]


def place_of(layout: Layout, numbers: Sequence[int]) -> slice:
    """The slice of neighbouring parameters."""
    first, last = (layout.slices[layout.parameters[number].name] for number in (numbers[0], numbers[-1]))
    return slice(first.start, last.stop)
