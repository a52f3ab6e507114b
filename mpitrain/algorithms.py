"""The options of each algorithm, with the defaults that go with it. What they mean stands in the rule's own file."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

import msgspec

from mpitrain.errors import BadInput

if TYPE_CHECKING:
    from mpitrain.config import Config

Count = Annotated[int, msgspec.Meta(ge=1)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Momentum = Annotated[float, msgspec.Meta(ge=0, lt=1)]


class Algorithm(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Base of the option tables. `protocol` names the module of mpitrain.protocols that runs it."""

    protocol: ClassVar[str]
    #: Values of [training] that suit the algorithm on the embedded digits; a configuration overrides them.
    training: ClassVar[dict[str, Any]] = {}
    #: Named settings of this table: a paper's, chosen by the key `preset`.
    presets: ClassVar[dict[str, dict[str, Any]]] = {}

    def check(self, config: "Config") -> None:
        """Raise BadInput for a combination that cannot work."""

    def workers(self, ranks: int) -> int:
        """How many of the ranks compute gradients."""
        return 1


class Sgd(Algorithm, frozen=True, tag_field="name", tag="sgd"):
    """Plain SGD on one rank."""

    protocol = "synchronous"


class Msgd(Algorithm, frozen=True, tag_field="name", tag="msgd"):
    """SGD with momentum on one rank."""

    protocol = "synchronous"
    training: ClassVar = {"learning_rate": 0.01}
    momentum: Momentum = 0.9
    nesterov: bool = True  # else classical


class Averaged(Algorithm, frozen=True, tag_field="name", tag="averaged"):
    """SGD with the average of all iterates beside it."""

    protocol = "synchronous"


class MovingAverage(Algorithm, frozen=True, tag_field="name", tag="moving-average"):
    """SGD with a moving average of the iterates beside it."""

    protocol = "synchronous"
    average_rate: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.01


class Allreduce(Algorithm, frozen=True, tag_field="name", tag="allreduce"):
    """Synchronous data-parallel SGD."""

    protocol = "synchronous"
    training: ClassVar = {"minibatch": 8, "learning_rate": 0.02}
    momentum: Momentum = 0.9
    nesterov: bool = True
    batch: Literal["local", "global"] = "local"  # whether training.minibatch is a rank's share or the whole
    bucket_mb: Annotated[float, msgspec.Meta(gt=0)] = 4.0

    def workers(self, ranks: int) -> int:
        return ranks


class Asgd(Algorithm, frozen=True, tag_field="name", tag="asgd"):
    """Asynchronous parameter server (Zhang 2013; Chan & Lane 2014)."""

    protocol = "server"
    training: ClassVar = {"learning_rate": 0.03, "epochs": 20.0}
    presets: ClassVar = {
        "": {},
        "zhang2013": {"momentum": 0.0, "gradient_decay": 1.0, "minibatches": 3, "until_free": False},
        "chan2014": {
            "momentum": 0.9,
            "gradient_decay": 0.9,
            "minibatches": 3,
            "until_free": True,
            "sampling": "independent",
        },
    }
    preset: Literal["", "zhang2013", "chan2014"] = ""
    momentum: Momentum = 0.0  # the master's (Chan & Lane eq 3)
    gradient_decay: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0  # β of α = β^(i−j) (Chan & Lane eq 5)
    minibatches: Count = 1  # n between two exchanges, at the least when until_free
    until_free: bool = False  # compute on until the master grants the exchange
    minibatches_most: Annotated[int, msgspec.Meta(ge=0)] = 0  # bound of until_free; 0: 10 n
    sampling: Literal["dispensed", "independent"] = "dispensed"
    order: Literal["free", "round-robin"] = "free"

    @property
    def most(self) -> int:
        """The most minibatches between two exchanges; exactly n in round-robin order."""
        if not self.until_free or self.order == "round-robin":
            return self.minibatches
        return max(self.minibatches_most or 10 * self.minibatches, self.minibatches)

    def workers(self, ranks: int) -> int:
        return max(ranks - 1, 1)


AnyAlgorithm = Sgd | Msgd | Averaged | MovingAverage | Allreduce | Asgd

ALGORITHMS: dict[str, type[Algorithm]] = {str(kind.__struct_config__.tag): kind for kind in get_args(AnyAlgorithm)}


def name_of(algorithm: Algorithm) -> str:
    """The name that `algorithm.name` has in the configuration."""
    return str(type(algorithm).__struct_config__.tag)


def defaults_of(table: dict[str, Any]) -> dict[str, Any]:
    """The part of a configuration that an algorithm's name and preset imply. Raises BadInput for an unknown preset."""
    name = table.get("name", "asgd")
    kind = ALGORITHMS[name]
    preset = table.get("preset", "")
    if kind.presets and preset not in kind.presets:
        raise BadInput(f"algorithm.preset = {preset!r}: unknown; known: {', '.join(filter(None, kind.presets))}")
    return {"training": dict(kind.training), "algorithm": {"name": name, **kind.presets.get(preset, {})}}
