"""The state of a training, which checkpoints hold and the counters describe."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import msgspec

from mpitrain.flat import Array
from mpitrain.sampling.common_rate import CommonRate, PlateauState
from mpitrain.sampling.means import Losses
from mpitrain.sampling.queue import Natural, Queue

#: The numbers in a checkpoint: counters of the master's state, or whatever a protocol keeps for a rank.
Numbers = dict[str, Any]
Vectors = dict[str, Array]  # by name
T = TypeVar("T", bound=msgspec.Struct)


def checked(numbers: Numbers, kind: type[T]) -> T:
    """The numbers of a checkpoint as a structure. Raises ValueError naming the number that does not fit."""
    try:
        return msgspec.convert(numbers, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"its numbers: {error}") from error


class MasterNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a master's state."""

    index: Natural
    began: Natural
    trained: Natural
    seconds: Annotated[float, msgspec.Meta(ge=0, lt=1e15)]
    position: Natural
    samples: Natural
    losses: list[tuple[Natural, float]]
    first_loss: float | None
    highest_loss: float | None = None
    rate: PlateauState


@dataclass
class State:
    """θ or Θ, the other vectors of the algorithm, the number i of updates, and the samples handed out so far.

    The vectors are on the device that computes with them. `model_of` derives the model to evaluate from them.
    """

    theta: Array
    queue: Queue
    index: int = 0
    beside: Vectors = field(default_factory=dict)  # other vectors of the algorithm, such as a velocity or counts
    began: int = 0  # the index at which those vectors began, and from which an optimizer counts its steps
    model_of: Callable[[Vectors], Array] = operator.itemgetter("theta")
    seconds: float = 0.0  # training time before this start
    trained: int = 0  # number of samples whose gradients were applied
    local: Vectors = field(default_factory=dict)  # this rank's own vectors, such as a worker's x and v
    local_numbers: Numbers = field(default_factory=dict)
    rate: CommonRate = field(default_factory=CommonRate)
    losses: Losses = field(init=False)  # losses of the most recent samples

    def __post_init__(self) -> None:
        self.losses = Losses(self.queue.samples)

    def vectors(self) -> Vectors:
        """The vectors that this algorithm uses, by name."""
        return {"theta": self.theta, **self.beside}

    def to_device(self, to_device: Callable[[Array], Array]) -> None:
        """Replace each vector by `to_device` of it."""
        self.theta = to_device(self.theta)
        self.beside = {name: to_device(vector) for name, vector in self.beside.items()}
        self.local = {name: to_device(vector) for name, vector in self.local.items()}

    def numbers(self) -> Numbers:
        """The counters that a checkpoint holds, for `restore`."""
        past = MasterNumbers(
            index=self.index,
            began=self.began,
            trained=self.trained,
            seconds=self.seconds,
            position=self.queue.position,
            samples=self.queue.samples,
            losses=self.losses.numbers(),
            first_loss=self.losses.first,
            highest_loss=self.losses.highest,
            rate=self.rate.state,
        )
        return msgspec.structs.asdict(past)

    def restore(self, past: MasterNumbers) -> None:
        """Set the counters from a checkpoint."""
        self.index, self.trained, self.seconds = past.index, past.trained, past.seconds
        self.began, self.queue.position = past.began, past.position
        self.losses.restore(past.losses, past.first_loss, past.highest_loss, self.trained)
        self.rate.state = past.rate

    @property
    def model(self) -> Array:
        """The parameters that are evaluated, hashed and exported."""
        return self.model_of(self.vectors())
