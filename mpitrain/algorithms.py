"""The options of each algorithm, with the defaults that go with it. What they mean stands in the rule's own file."""

import warnings
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

import msgspec

from mpitrain.errors import BadInput
from mpitrain.rules import elastic

if TYPE_CHECKING:
    from mpitrain.config import Config
    from mpitrain.models import Network

Count = Annotated[int, msgspec.Meta(ge=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Momentum = Annotated[float, msgspec.Meta(ge=0, lt=1)]


class Algorithm(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Base of the option tables. `protocol` names the module of mpitrain.protocols that runs it."""

    protocol: ClassVar[str]
    #: Values of [training] that suit the algorithm on the embedded digits; a configuration overrides them.
    training: ClassVar[dict[str, Any]] = {}
    #: Named settings of this table: a paper's, chosen by the key `preset`.
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    #: What else of the configuration a preset implies.
    recipes: ClassVar[dict[str, dict[str, Any]]] = {}

    def check(self, config: "Config") -> None:
        """Raise BadInput for a combination that cannot work."""

    def fits(self, network: "Network", ranks: int) -> None:
        """Raise BadInput for a network that cannot be trained so on so many ranks."""

    def check_steps(self, steps: int) -> None:
        """Raise BadInput for what a worker with so few minibatches to train cannot do."""

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


class Hybrid(Algorithm, frozen=True, tag_field="name", tag="hybrid"):
    """Data-parallel convolutions, model-parallel fully connected layers (Krizhevsky 2014)."""

    protocol = "hybrid"
    training: ClassVar = {"minibatch": 32, "learning_rate": 0.06, "epochs": 6.0}
    scheme: Literal["a", "b", "c"] = "b"
    group: Annotated[int, msgspec.Meta(ge=0)] = 0  # ranks that share a round of scheme c; 0: all of them
    fc_batch: Literal["full", "sub"] = "full"  # fully connected layers: one update a minibatch, or one a round
    batch: Literal["local", "global"] = "local"  # whether training.minibatch is a rank's share or the whole
    momentum: Momentum = 0.9
    weight_decay: Annotated[float, msgspec.Meta(ge=0)] = 0.0005  # of weights; model.l2 is added to it
    bias_rate: Annotated[float, msgspec.Meta(gt=0)] = 2.0  # of biases, in learning rates
    scaling: Literal["linear", "theory", "none"] = "linear"  # of the rate with k = batch / base_batch: k, √k, 1
    base_batch: Count = 128  # the minibatch that training.learning_rate is for
    overlap: bool = True  # False: wait for every message at once, to see what hiding them gains

    def check(self, config: "Config") -> None:
        if self.group and self.scheme != "c":
            raise BadInput(f"algorithm.group: scheme {self.scheme} has no groups; only c has")
        if config.training.rate_per == "sample":
            raise BadInput("training.rate_per: hybrid's rates are of means; algorithm.scaling says how they scale")
        if any(stage.workers for stage in config.stages):
            raise BadInput("stages: hybrid trains with all ranks; workers cannot change")
        if self.scaling == "theory" and config.training.learning_rate * self.weight_decay >= 1:
            raise BadInput("algorithm.scaling: theory needs learning_rate x weight_decay below 1")

    def workers(self, ranks: int) -> int:
        return ranks

    def fits(self, network: "Network", ranks: int) -> None:
        from mpitrain.models.partition import stages  # here, so that reading a configuration loads no layers

        stages(network, ranks)


class Elastic(Algorithm, frozen=True):
    """What the algorithms with a centre x̃ and workers of their own xⁱ share (Zhang, Choromanska & LeCun 2015)."""

    protocol = "elastic"
    tau: Count = 10  # τ: minibatches between two exchanges
    rate_decay: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # γ of η/(1 + γt)^0.5, t the worker's own clock
    plateau: Annotated[int, msgspec.Meta(ge=0)] = 0  # minibatches of a window of rules/plateau.py; 0: no falls
    sampling: Literal["dispensed", "independent", "chunked"] = "dispensed"
    loaders: Count = 4  # k of "chunked": chunks shuffled together
    order: Literal["free", "round-robin"] = "free"
    centre: Literal["whole", "sharded"] = "whole"  # x̃ on rank 0, or a share of it on every rank

    def check(self, config: "Config") -> None:
        if self.centre == "sharded" and config.run.exchange == "messages":
            raise BadInput("algorithm.centre = 'sharded': needs one-sided access; run.exchange allows messages only")

    def workers(self, ranks: int) -> int:
        return max(ranks - 1, 1)

    def check_steps(self, steps: int) -> None:
        if self.tau > steps:
            raise BadInput(f"algorithm.tau = {self.tau}: longer than the {steps} minibatches that a worker has")


class Pulled(Elastic, frozen=True):
    """A centre that pulls with a moving rate, given as α, as β = pα, or as ρ = α/η; β = 0.9 when none is given."""

    alpha: Annotated[float, msgspec.Meta(ge=0)] | None = None
    beta: Annotated[float, msgspec.Meta(ge=0)] | None = None
    rho: Annotated[float, msgspec.Meta(ge=0)] | None = None
    start: Literal["same", "different"] = "same"  # xⁱ = x̃, or other seeds, which trap it (footnote 7)

    def check(self, config: "Config") -> None:
        super().check(config)
        if sum(value is not None for value in (self.alpha, self.beta, self.rho)) > 1:
            raise BadInput("algorithm.alpha, algorithm.beta, algorithm.rho: give one of them")

    def moving_rate(self, eta: float, workers: int) -> float:
        """α of one exchange at the learning rate η with p workers."""
        if self.alpha is not None:
            return self.alpha
        if self.rho is not None:
            return elastic.alpha_from_rho(eta, self.rho)
        return elastic.alpha_from_beta(0.9 if self.beta is None else self.beta, workers)


class Easgd(Pulled, frozen=True, tag_field="name", tag="easgd"):
    """Asynchronous EASGD (Algorithm 1)."""

    training: ClassVar = {"learning_rate": 0.1, "epochs": 20.0}


class Eamsgd(Pulled, frozen=True, tag_field="name", tag="eamsgd"):
    """Asynchronous EAMSGD (Algorithm 2)."""

    training: ClassVar = {"learning_rate": 0.02, "epochs": 20.0}
    delta: Momentum = 0.9  # δ; the paper's networks take 0.99


class _InStep(Pulled, frozen=True):
    """All ranks are workers and take every step together."""

    protocol = "elastic-sync"

    def check(self, config: "Config") -> None:
        super().check(config)
        if any(stage.workers for stage in config.stages):
            raise BadInput("stages: a synchronous algorithm trains with all ranks; workers cannot change")
        if self.order != "free" or self.centre != "whole":
            raise BadInput("algorithm.order, algorithm.centre: not for an algorithm that has no master")

    def workers(self, ranks: int) -> int:
        return ranks


class EasgdSync(_InStep, frozen=True, tag_field="name", tag="easgd-sync"):
    """Synchronous EASGD (equations 5 and 6)."""

    training: ClassVar = {"learning_rate": 0.1, "epochs": 20.0}


class EamsgdSync(_InStep, frozen=True, tag_field="name", tag="eamsgd-sync"):
    """Synchronous EAMSGD (equations 7 and 6)."""

    training: ClassVar = {"learning_rate": 0.02, "epochs": 20.0}
    delta: Momentum = 0.9


class Downpour(Elastic, frozen=True, tag_field="name", tag="downpour"):
    """DOWNPOUR (Dean et al. 2012)."""

    training: ClassVar = {"learning_rate": 0.03, "epochs": 20.0}
    tau: Count = 1


class Admm(Elastic, frozen=True, tag_field="name", tag="admm"):
    """Asynchronous ADMM (equations 9 to 11)."""

    training: ClassVar = {"learning_rate": 0.05, "epochs": 20.0}
    rho: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    delta: Momentum = 0.0  # of the momentum variant
    start: Literal["same", "different"] = "same"

    def check(self, config: "Config") -> None:
        super().check(config)
        if any(stage.workers for stage in config.stages):
            raise BadInput("stages: admm's centre is a mean over all workers; their number cannot change")


class Served(Algorithm, frozen=True):
    """DOWNPOUR's relatives whose master computes: they run on the parameter server."""

    protocol = "server"
    gradient_decay: ClassVar = 1.0
    momentum: ClassVar = 0.0
    until_free: ClassVar = False
    sampling: Literal["dispensed", "independent", "chunked"] = "dispensed"
    loaders: Count = 4
    order: Literal["free", "round-robin"] = "free"

    @property
    def minibatches(self) -> int:
        """τ, by the name that the server knows."""
        return getattr(self, "tau", 1)

    @property
    def most(self) -> int:
        """The most minibatches between two exchanges."""
        return self.minibatches

    def workers(self, ranks: int) -> int:
        return max(ranks - 1, 1)

    def check_steps(self, steps: int) -> None:
        if self.minibatches > steps:
            raise BadInput(f"algorithm.tau = {self.minibatches}: longer than the {steps} minibatches that a worker has")


class Mdownpour(Served, frozen=True, tag_field="name", tag="mdownpour"):
    """Momentum DOWNPOUR, τ = 1: the master keeps the velocity."""

    training: ClassVar = {"learning_rate": 0.003, "epochs": 20.0}
    delta: Momentum = 0.9


class Adownpour(Served, frozen=True, tag_field="name", tag="adownpour"):
    """DOWNPOUR with the average of the centre over time beside it."""

    training: ClassVar = {"learning_rate": 0.03, "epochs": 20.0}
    tau: Count = 1


class Mvadownpour(Served, frozen=True, tag_field="name", tag="mvadownpour"):
    """DOWNPOUR with a moving average of the centre beside it."""

    training: ClassVar = {"learning_rate": 0.03, "epochs": 20.0}
    tau: Count = 1
    average_rate: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.01  # the paper's runs, of more updates: 0.001


class SparseDelta(Algorithm, frozen=True, tag_field="name", tag="sparse-delta"):
    """Peers that send each other single thresholded gradient elements (Strom 2015)."""

    protocol = "peers"
    training: ClassVar = {"learning_rate": 0.05, "minibatch": 8}
    presets: ClassVar = {"": {}, "strom2015": {"threshold": 4.0}}
    # Table 1 and §3.3, but for the number of ranks; 166 hours of 1000 are a sixth of an epoch.
    recipes: ClassVar = {
        "strom2015": {
            "training": {"epochs": 10.0, "minibatch": 256, "learning_rate": 0.008, "rate_per": "sample"},
            "pretraining": {"method": "layerwise"},
            "stages": [
                {"at": 0.166, "minibatch": 512},
                {"at": 1.0, "minibatch": 1024, "rate_factor": 0.5},
                *({"at": float(epoch), "rate_factor": 0.5} for epoch in range(2, 10)),
            ],
        }
    }
    preset: Literal["", "strom2015"] = ""
    threshold: Positive = 1.0  # of the residual of summed gradients; with a target density, where it starts
    codec: Literal["packed", "golomb-rice", "auto"] = "packed"
    target_density: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0  # share of elements to send; 0: fixed threshold
    clip: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # of the residual, in thresholds; 0: none
    window: Count = 4  # messages on their way to a peer
    patience: Annotated[int, msgspec.Meta(ge=0)] = 2  # minibatches trained on while a peer's window is full
    synchronous: bool = False  # every rank waits for every minibatch's messages
    order: Literal["free", "round-robin"] = "free"  # the latter: synchronous, messages applied by rank
    check_every: Annotated[float, msgspec.Meta(ge=0)] = 10.0  # seconds between checks of the replica; 0: none

    def check(self, config: "Config") -> None:
        from mpitrain.rules.sparse_delta import integer_step
        from mpitrain.schedule import Schedule

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for settings in Schedule(config, 1).all:
                try:
                    integer_step(self.rate(config, settings.learning_rate, settings.minibatch), self.threshold)
                except BadInput as error:
                    raise BadInput(f"algorithm.threshold: {error}") from None

    @staticmethod
    def rate(config: "Config", learning_rate: float, minibatch: int) -> float:
        """η per sample."""
        return learning_rate if config.training.rate_per == "sample" else learning_rate / minibatch

    def workers(self, ranks: int) -> int:
        return ranks


AnyAlgorithm = (
    Sgd
    | Msgd
    | Averaged
    | MovingAverage
    | Allreduce
    | Asgd
    | Hybrid
    | Easgd
    | Eamsgd
    | EasgdSync
    | EamsgdSync
    | Downpour
    | Admm
    | Mdownpour
    | Adownpour
    | Mvadownpour
    | SparseDelta
)

ALGORITHMS: dict[str, type[Algorithm]] = {str(kind.__struct_config__.tag): kind for kind in get_args(AnyAlgorithm)}


def chunks_together(algorithm: Algorithm) -> int:
    """Chunks that are shuffled together when samples are read so (EASGD's prefetch); 0 when they are not."""
    return getattr(algorithm, "loaders", 1) if getattr(algorithm, "sampling", "") == "chunked" else 0


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
    recipe = kind.recipes.get(preset, {})
    training = {**kind.training, **recipe.get("training", {})}
    return {**recipe, "training": training, "algorithm": {"name": name, **kind.presets.get(preset, {})}}
