"""A model that computes no gradient, but says that its parts are final as the true one does."""

import numpy as np
from numpy.typing import DTypeLike

from mpitrain.flat import Array
from mpitrain.models.model import Model, Ready
from mpitrain.sampling.batch import Batch, SampleForm
from mpitrain.sampling.rng import stream


class PhantomModel(Model):
    """`of` another model, whose gradient of one sample of this form has shown its parts. The loss is 0."""

    def __init__(self, of: Model, form: SampleForm, dtype: DTypeLike) -> None:
        self.layout, self.input_shape, self.classes, self.name = of.layout, of.input_shape, of.classes, of.name
        self.output = of.output
        self._parts: list[slice] = []
        parameters = np.zeros(self.layout.size, dtype)
        batch = form.room(1, dtype, np.zeros)
        of.loss_and_gradient(parameters, np.empty_like(parameters), batch, stream(0, "dropout"), self._parts.append)

    def initial(self, seed: int, dtype: DTypeLike = np.float32) -> Array:
        """Not to be asked for: a phantom's vectors have no values."""
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
        """0; the parts are said to be final one after another."""
        for part in self._parts if on_ready is not None else ():
            on_ready(part)  # type: ignore[misc]
        return 0.0

    def evaluate(self, parameters: Array, batch: Batch) -> tuple[float, int]:
        """Not to be asked for."""
        raise NotImplementedError

    def outputs(self, parameters: Array, inputs: Array) -> Array:
        """Not to be asked for."""
        raise NotImplementedError
