"""The gradient of all ranks in place of a rank's own, once backward returns (`allreduce`)."""

from contextlib import ExitStack
from functools import partial

import numpy as np
import torch

from mpitrain.api.loop.loader import Dealt
from mpitrain.api.loop.method import Method, Told
from mpitrain.errors import BadInput, named, say
from mpitrain.models.torch.binding import parts
from mpitrain.training.buckets import Buckets

APART = 1e-3  # relative distance of parameters, far more than unlike machines' rounding makes of the same steps


class Gradients(Method):
    """Sums the gradients over the ranks, weighted by their samples, while backward goes on.

    After backward every `p.grad` is a view of one vector. It begins with a flag for each parameter, above 0 if some
    rank has used it.
    """

    apart = False

    def begin(self) -> None:
        flat = self.flat
        flat.bind(flat.vector())
        count = len(flat.parameters)
        self._sum = np.zeros(count + flat.x.size, flat.x.dtype)
        self._used, gradient = self._sum[:count], torch.from_numpy(self._sum[count:])
        self._views = list(flat.layout.views(gradient).values())
        self._parts = [(slice(part.start + count, part.stop + count), inside) for part, inside in parts(flat.layout)]
        sums = self.transport.duplicate()  # apart from all else: a rank may leave one out, which the roll finds
        self._buckets = Buckets(self.algorithm.bucket_mb, self._sum, lambda part: sums.start_sum(self._sum[part]))
        self._rolling = self._running = self._held = False
        self._t = self._sums = self._stepped = 0
        self._dealt = Dealt(None, 0, 0, True)
        self._apart = False  # whether gradients of several batches are added up, each weighed by its own samples
        self._weighing = ExitStack()
        self._hooks = ExitStack()
        for number, p in enumerate(flat.parameters):
            self._hooks.callback(p.register_post_accumulate_grad_hook(partial(self._ready, number)).remove)

    def before(self, t: int, batch: Dealt) -> None:
        self._weighing.close()
        self._dealt, self._apart, self._t = batch, self._held, t
        if not batch.alike:
            self._weighing.enter_context(self.flat.gradients_through(self._weighed))
        self._start_roll(self._sums)

    def before_step(self) -> None:
        self._require_ended()
        if self._held:
            raise BadInput("optimizer.step: gradients were only added up, within ranks.accumulate(): none is summed")
        if self._stepped == self._sums and self.ranks > 1:
            self._require_sums()
        self._stepped = self._sums

    def after(self, t: int) -> None:
        self._require_ended()
        self._end_roll()

    def finish(self, t: int) -> None:
        self.roll.call(t, "the end of the loop", Told(leaving=True, sums=self._sums))
        first = self.flat.x.copy()
        self.transport.broadcast_array(first, "rank 0's parameters")
        with np.errstate(over="ignore", invalid="ignore"):
            near = np.linalg.norm(self.flat.x - first) <= APART * np.linalg.norm(first)
        apart = not near and bool(np.isfinite(first).all())
        odd = np.flatnonzero(self.roll.call(t, "the ranks' parameters", Told(counted=int(apart)))).tolist()
        if odd and self.transport.rank == 0:
            line = f"warning: {named(odd)}: the parameters differ from rank 0's, as the ranks took different steps"
            say(f"{line}, such as with noise of a rank's own; all have rank 0's now")
        np.copyto(self.flat.x, first)

    def settle(self) -> None:
        if self._held:
            raise BadInput("ranks.save: gradients that were accumulated are in no step yet, and a save has none")

    def release(self) -> None:
        self._weighing.close()
        self._hooks.close()

    def _start_roll(self, sums: int) -> None:
        self.roll.start(Told(sums=sums, rate=self.flat.learning_rate))
        self._rolling = True

    def _end_roll(self) -> None:
        if self._rolling:
            self._rolling = False
            self.roll.end(self._t, "the other ranks' next batch")

    def _require_ended(self) -> None:
        if self._running:
            line = f"rank {self.transport.rank}: backward ended in an error, so that the gradients were not summed"
            raise BadInput(f"{line}: no rank can leave out a batch alone")

    def _require_sums(self) -> None:
        for name, p, view in zip(self.flat.names, self.flat.parameters, self._views, strict=True):
            if p.grad is not None and p.grad.data_ptr() != view.data_ptr():
                why = "backward sums gradients over the ranks, and was not called since the last step"
                raise BadInput(f"optimizer.step: the gradient of {name} is this rank's alone: {why}")

    # ---- in backward

    def _weighed(self, gradient: torch.Tensor) -> torch.Tensor:
        """A gradient, times this rank's weight if other batches' are added to it, or it to theirs."""
        return gradient * (self._weight * self.ranks) if self.accumulating or self._apart else gradient

    @property
    def _weight(self) -> float:
        return self._dealt.samples / self._dealt.together

    @property
    def _alike(self) -> bool:
        """Whether no rank weighs its sum any more: the same on all ranks."""
        return self._apart or self._dealt.alike

    def _ready(self, number: int, p: torch.nn.Parameter) -> None:
        self._held = self.accumulating
        self._apart |= self.accumulating
        if self.accumulating or self.ranks == 1:
            return
        if not self._running:
            self._begin_sums()
        if p.grad is not None and p.grad.layout is not torch.strided:
            raise BadInput(f"model: {self.flat.names[number]} has a sparse gradient; compute with sparse=False")
        self._final[number] = True
        self._report()

    def _begin_sums(self) -> None:
        if not self._dealt.together:
            raise BadInput("backward: of no batch that ranks.share has handed out")
        if not self._rolling:  # a further backward of this batch, as of a closure: others may be done with it
            with self.attendance:
                self._start_roll(self._sums + 1)
        self._running, self._next = True, 0
        self._final = [False] * len(self._views)
        self._used[:] = 0
        torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _report(self, rest: bool = False) -> None:
        """Add the parts whose turn it is, last ones first, which is the same order on all ranks."""
        while self._next < len(self._parts):
            part, inside = self._parts[self._next]
            if not rest and not all(self._final[number] for number in inside):
                return
            self._next += 1
            for number in inside:
                self._take(number)
            with self.attendance:
                self._buckets.add(part)

    @torch.no_grad()
    def _take(self, number: int) -> None:
        """Move a gradient to its place in the vector, times this rank's weight if the ranks' weights differ."""
        p, view = self.flat.parameters[number], self._views[number]
        if p.grad is None:
            view.zero_()
            return
        self._used[number] = 1
        if p.grad.data_ptr() != view.data_ptr():
            view.copy_(p.grad)
        if not self._alike:
            view.mul_(self._weight)
        p.grad = view

    def _end(self) -> None:
        """End backward on this rank: wait for the sums."""
        self._running = False
        self._report(rest=True)
        with self.attendance:
            self._buckets.add(slice(0, len(self._used)))
            started = list(self._buckets.drain())
            self._end_roll()
            for request, part in started:
                self.transport.wait(request, "the other ranks' gradients")
                if self._alike:
                    np.multiply(self._sum[part], 1.0 / self.ranks, out=self._sum[part])
        for p, view, used in zip(self.flat.parameters, self._views, self._used, strict=True):
            p.grad = view if used else None
        self._sums += 1
