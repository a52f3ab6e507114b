"""A model that computes no gradient, but reports the same parts as final, in the same order, as a real one."""

import numpy as np
from numpy.typing import DTypeLike

from mpitrain.flat import Array
from mpitrain.models.model import Model, Ready
from mpitrain.sampling.batch import Batch, SampleForm
from mpitrain.sampling.rng import stream


class PhantomModel(Model):
    """Stands for the model `of`, whose gradient of one sample of `form` shows which parts it reports. The loss is 0."""

    def __init__(self, of: Model, form: SampleForm, dtype: DTypeLike) -> None:
        self.layout, self.input_shape, self.classes, self.name = of.layout, of.input_shape, of.classes, of.name
        self.output = of.output
        self._parts: list[slice] = []
        parameters = np.zeros(self.layout.size, dtype)
        batch = form.room(1, dtype, np.zeros)
        of.loss_and_gradient(parameters, np.empty_like(parameters), batch, stream(0, "dropout"), self._parts.append)

    def initial(self, seed: int, dtype: DTypeLike = np.float32) -> Array:
        """Not available: a phantom's vectors have no values."""
        raise NotImplementedError

    def loss_and_gradient(
        self,
        parameters: Array,
        gradients: Array,
        batch: Batch,
        rng: np.random.Generator | None = None,
        on_ready: Ready | None = None,
        *,
        share: tuple[int, int] | None = None,
    ) -> float:
        """Report the parts as final one after another; returns 0."""
        if on_ready is not None:
            for part in self._parts:
                on_ready(part)
        return 0.0

    def evaluate(self, parameters: Array, batch: Batch) -> tuple[float, int]:
        """Not available."""
        raise NotImplementedError

    def outputs(self, parameters: Array, inputs: Array) -> Array:
        """Not available."""
        raise NotImplementedError
