"""What a training is made of beside its configuration: what a checkpoint holds."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mpitrain.algorithms import Adownpour, Algorithm, Averaged, Mdownpour, MovingAverage, Mvadownpour, SparseDelta
from mpitrain.assignments import Assignments
from mpitrain.flat import Array, on_host
from mpitrain.means import Losses
from mpitrain.rules.sgd import look_ahead
from mpitrain.rules.sparse_delta import round_weights

if TYPE_CHECKING:
    from mpitrain.device import Cpu


@dataclass
class State:
    """θ or Θ with what its rule keeps beside it, the number i of updates, and which samples have been served.

    The vectors lie where they are computed with, on a GPU too.
    """

    theta: Array
    assignments: Assignments
    index: int = 0
    velocity: Array | None = None
    average: Array | None = None
    counts: Array | None = None  # int32, of the unit that a peer's weights are multiples of
    look_ahead: float = 0.0  # δ where θ is x + δv of a model x (MDOWNPOUR)
    seconds: float = 0.0  # of training before this start
    trained: int = 0  # samples whose gradients were applied
    local: dict[str, Array] = field(default_factory=dict)  # this rank's own vectors, such as a worker's x and v
    local_numbers: dict[str, Any] = field(default_factory=dict)
    losses: Losses = field(init=False)  # of the samples trained last

    def __post_init__(self) -> None:
        self.losses = Losses(self.assignments.samples)

    def vectors(self) -> dict[str, Array]:
        """The vectors by name, without those that the algorithm has none of."""
        named = {"theta": self.theta, "velocity": self.velocity, "average": self.average, "counts": self.counts}
        return {name: vector for name, vector in named.items() if vector is not None}

    def place(self, device: "Cpu") -> None:
        """Move the vectors to the device."""
        for name in self.vectors():
            setattr(self, name, device.place(getattr(self, name)))
        self.local = {name: device.place(vector) for name, vector in self.local.items()}

    def numbers(self) -> dict[str, Any]:
        """The counters of a checkpoint; `restore` takes them up again."""
        position, samples = self.assignments.position, self.assignments.samples
        counted = {"index": self.index, "trained": self.trained, "seconds": self.seconds}
        return {
            **counted,
            "position": position,
            "samples": samples,
            "losses": self.losses.numbers(),
            "first_loss": self.losses.first,
        }

    def restore(self, numbers: dict[str, Any]) -> None:
        """Take up the counters of a checkpoint."""
        self.index, self.trained, self.seconds = numbers["index"], numbers["trained"], numbers["seconds"]
        self.assignments.position = numbers["position"]
        self.losses.restore(numbers.get("losses", ()), self.trained)
        self.losses.first = numbers.get("first_loss")

    @property
    def model(self) -> Array:
        """What is evaluated, hashed and exported: the average where the algorithm keeps one, θ − δv, else θ."""
        if self.look_ahead and self.velocity is not None:
            model = np.empty_like(self.theta)
            look_ahead(model, self.theta, self.velocity, -self.look_ahead)
            return model
        return self.theta if self.average is None else self.average

    def little_endian(self) -> Array:
        """The model as little-endian float32, the form that is hashed."""
        return np.ascontiguousarray(on_host(self.model), dtype="<f4")


def fresh(options: Algorithm, theta: Array, assignments: Assignments) -> State:
    """The state at the start of a training, with the vectors that the algorithm keeps beside θ."""
    state = State(theta, assignments)
    if getattr(options, "momentum", 0.0):
        state.velocity = np.zeros_like(theta)
    if isinstance(options, Mdownpour):
        state.velocity, state.look_ahead = np.zeros_like(theta), options.delta
    if isinstance(options, Averaged | MovingAverage | Adownpour | Mvadownpour):
        state.average = theta.copy()
    if isinstance(options, SparseDelta):
        state.counts = np.empty(theta.size, np.int32)
        round_weights(theta, state.counts)
        state.local["residual"] = np.zeros_like(theta)
    return state
