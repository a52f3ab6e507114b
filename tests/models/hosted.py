"""A model on a device behind the face of one on the host, for what is tested of all models."""

from typing import Any

from mpitrain.device.cpu import Cpu
from mpitrain.flat import Array, on_host
from mpitrain.models.model import Consumer, Draws, Ready
from mpitrain.sampling.batch import Batch


class Hosted:
    """Copies what `model` gets to the device, and what it gives to the host; parts of a gradient when they are final,
    and back when they have been used."""

    def __init__(self, model: Any, device: Cpu) -> None:
        self._model, self._device = model, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def loss_and_gradient(
        self,
        parameters: Array,
        gradients: Array,
        batch: Batch,
        draws: Draws | None = None,
        on_ready: Ready | None = None,
    ) -> float:
        """As the model's."""
        here = self._device.to_device(gradients)

        def ready(part: slice) -> None:
            assert on_ready is not None
            gradients[part] = on_host(here[part])
            on_ready(part)
            here[part].set(gradients[part])

        report: Ready | None = None if on_ready is None else ready
        if isinstance(on_ready, Consumer):
            use = on_ready.use
            report = Consumer(here, lambda part, g: use(part, on_host(g)))
        there = self._device.to_device(parameters), here, self._batch(batch)
        loss = float(self._model.loss_and_gradient(*there, draws, report))
        gradients[:] = on_host(here)
        return loss

    @property
    def merit(self) -> str:
        """The model's."""
        return self._model.merit

    def evaluate(self, parameters: Array, batch: Batch) -> tuple[float, int]:
        """As the model's."""
        loss, errors = self._model.evaluate(self._device.to_device(parameters), self._batch(batch))
        return loss, errors

    def outputs(self, parameters: Array, inputs: Array) -> Array:
        """As the model's."""
        return on_host(self._model.outputs(*map(self._device.to_device, (parameters, inputs))))

    def measure(self, parameters: Array, inputs: Array, number: int, count: int) -> None:
        """As the model's."""
        self._model.measure(*map(self._device.to_device, (parameters, inputs)), number, count)

    def _batch(self, batch: Batch) -> Batch:
        return Batch(*map(self._device.to_device, batch))
