"""The base class of algorithms: options, requirements, and the arithmetic of the ranks' roles."""

from collections.abc import Mapping, Sequence
from math import ceil, prod
from typing import Any, ClassVar, Literal, Self

import msgspec
import numpy as np

from mpitrain.algorithms.optimizers import AnyOptimizer, Buffers, Fast, Optimizer, Sgd, plain
from mpitrain.algorithms.roles import AveragingRule, MasterRule, RoundRule, WorkerRule
from mpitrain.algorithms.space import Space
from mpitrain.errors import BadInput
from mpitrain.files import Record
from mpitrain.flat import Array
from mpitrain.keys import Number
from mpitrain.sampling.common_rate import CommonRate
from mpitrain.sampling.stages import Settings

#: Defaults that an algorithm or a preset sets in other tables of the configuration, by the tables' names. In a loop of
#: the user's own they include defaults of the algorithm's own table.
OtherDefaults = Mapping[str, Any]


class Algorithm(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Base class of the tables of options. `protocol` names the module of mpitrain.protocols that runs the algorithm.

    Methods that raise NotImplementedError are called only by some protocols, whose algorithms override them.
    """

    protocol: ClassVar[str]
    #: Whether a centre only adds what workers push, in any order; otherwise a master merges it.
    additive: ClassVar[bool] = False
    #: Whether all ranks have the same parameters at the end.
    replicated: ClassVar[bool] = False
    #: Whether stages can change the number of workers.
    workers_change: ClassVar[bool] = False
    #: Whether a worker can be a team of ranks.
    in_teams: ClassVar[bool] = False
    #: Whether the network's fully connected layers are divided over the ranks, which phantom vectors cannot show.
    divides: ClassVar[bool] = False
    #: Whether biases have a learning rate of their own, which stages can change by `bias_factor`.
    rates_biases: ClassVar[bool] = False
    #: Whether [algorithm.optimizer] can choose the optimizer of the local step.
    any_optimizer: ClassVar[bool] = False
    #: The keys that `mpitrain.distribute` takes; where there are none, why not, and which algorithm fits instead.
    loop_keys: ClassVar[tuple[str, ...]] = ()
    loop_defaults: ClassVar[OtherDefaults] = {}
    loop_instead: ClassVar[str] = "it trains on one rank; allreduce does the same on many"
    #: The vectors of a checkpoint from which `model` is computed; "average" is the average z of θ over time, z₀ = θ₀.
    model_from: ClassVar[tuple[str, ...]] = ("theta",)
    #: Defaults of [training], which suit the algorithm on the embedded digits.
    training: ClassVar[Record] = {}
    #: What `mpitrain advise` tries, by key; it skips an algorithm whose space is empty.
    space: ClassVar[Space] = {}
    #: Defaults of this table by the value of the key `preset`, such as those of a paper.
    presets: ClassVar[dict[str, Record]] = {}
    #: Defaults of other tables of the configuration by preset.
    recipes: ClassVar[dict[str, OtherDefaults]] = {}
    chosen: AnyOptimizer | None = msgspec.field(default=None, name="optimizer")
    """A table, `[algorithm.optimizer]`, that replaces the algorithm's own local step."""

    @classmethod
    def of(cls, algorithm: "Algorithm") -> Self:
        """`algorithm` as a table of this class: a protocol that calls this runs no other class."""
        assert isinstance(algorithm, cls), f"{type(algorithm).__name__} cannot run as {cls.__name__}"
        return algorithm

    # ---- requirements

    def check(self) -> None:
        """Raise BadInput for a combination of keys that cannot work."""

    def check_with(self, exchange: str, rate_per: str, settings: Sequence[Settings]) -> None:
        """Raise BadInput where the keys cannot work with run.exchange, training.rate_per or the settings of a stage."""

    def check_loop(self, one_rate: bool) -> None:
        """Raise BadInput where the keys cannot work around a user's own optimizer; `one_rate`: all its groups have
        one learning rate."""

    @property
    def follows_rate(self) -> bool:
        """Whether an exchange of all ranks depends on the learning rate, which then is to be the same on all."""
        return False

    def check_steps(self, steps: int) -> None:
        """Raise BadInput if each worker has too few minibatches."""
        if self.period > steps:
            raise BadInput(f"algorithm.tau = {self.period}: more than the minibatches that a worker has ({steps})")

    def resumed(self, eta: float, before: int, now: int) -> str:
        """A line for the user: what besides the number of workers changes if a run is resumed with `now` instead of
        `before` workers at learning rate η; "" for nothing."""
        return ""

    def warnings(self, eta: float, workers: int) -> list[tuple[str, dict[str, float]]]:
        """Warnings that the training may not converge at learning rate `eta` with these workers, with their numbers."""
        return []

    def unfit(self) -> dict[str, str]:
        """The keys of [training] that the algorithm cannot have, each with a clause that says why."""
        return {}

    @property
    def sparse(self) -> bool:
        """Whether ranks send single entries. Phantom vectors, which have no values, must be told how many."""
        return False

    @property
    def bucket_mb(self) -> float:
        """The size in MB of the pieces in which ranks sum the gradient of a common minibatch."""
        raise NotImplementedError

    @property
    def density(self) -> float:
        """The share of each gradient's entries that a sparse algorithm aims to send; 0: no aim."""
        return 0.0

    @property
    def has_master(self) -> bool:
        """Whether rank 0 is a master that computes no gradients, if there are several ranks."""
        return self.protocol == "server"

    @property
    def together(self) -> bool:
        """Whether all ranks are workers that take every step together."""
        return self.protocol == "model-averaging"

    def workers(self, ranks: int) -> int:
        """The number of ranks that compute gradients."""
        if self.has_master:
            return max(ranks - 1, 1)
        return ranks if self.together else 1

    def samples_of_step(self, minibatch: int, ranks: int) -> int:
        """The samples of a step that all ranks take together if training.minibatch is `minibatch`."""
        return minibatch * (ranks if self.together else 1)

    def samples_of_gradient(self, minibatch: int, ranks: int) -> int:
        """The samples of a gradient that one rank computes."""
        return minibatch

    def vectors(self) -> int:
        """The least number of vectors of the network's size that a rank holds: θ, a gradient, `beside` and `own`."""
        return 2 + len(self.beside(np.zeros(1, np.float32))) + self.own_vectors()

    def own_vectors(self) -> int:
        """How many vectors a worker keeps for itself; a checkpoint holds them in addition to the shared ones."""
        return len(self.own(np.zeros(1, np.float32)))

    @property
    def momentum_changes(self) -> bool:
        """Whether stages can change the momentum."""
        return False

    @property
    def period(self) -> int:
        """The number of a worker's minibatches between two exchanges with a centre."""
        return 1

    @property
    def computes_on(self) -> bool:
        """Whether a worker continues to compute until the master is free."""
        return False

    @property
    def in_order(self) -> bool:
        """Whether workers take turns in exchanging with a centre."""
        return False

    @property
    def sharded(self) -> bool:
        """Whether every rank holds a share of the centre, instead of rank 0 the whole of it."""
        return False

    @property
    def independent(self) -> bool:
        """Whether samples are drawn from the whole corpus with replacement instead of in the order of an epoch."""
        return False

    @property
    def chunked(self) -> tuple[int, int] | None:
        """(chunks that a worker takes and shuffles together, samples of a chunk), as in EASGD's prefetch; None if
        samples are not read in chunks."""
        return None

    @property
    def samples_of_chunks(self) -> int:
        """The samples that a worker takes in chunks at a time; 0 if samples are not read in chunks."""
        return prod(self.chunked or (0,))

    @property
    def starts_apart(self) -> bool:
        """Whether workers start from different seeds than the centre (which traps EASGD, footnote 7)."""
        return False

    def common_rate(self) -> CommonRate:
        """The learning rate of all ranks, which may fall with their loss."""
        return CommonRate()

    def own_rate(self, eta: float, t: int) -> float:
        """A worker's own learning rate at its local time t, computed from the common learning rate η."""
        return eta

    # ---- arithmetic

    def beside(self, theta: Array) -> Buffers:
        """The initial values of the vectors kept in addition to θ, by name."""
        return {"average": theta.copy()} if "average" in self.model_from else self.optimizer().buffers(theta)

    @property
    def units(self) -> tuple[object, ...]:
        """The values on which the meaning of θ and of the vectors beside it depends, besides the names of algorithm and
        optimizer: only where they are equal does a resumed run take up these vectors."""
        return ()

    def own(self, theta: Array) -> Buffers:
        """The initial values of the vectors that each rank keeps for itself, by name."""
        return {}

    def of_worker(self, vectors: Buffers, workers: int) -> Buffers:
        """The initial values of the vectors that a master keeps for each of `workers` workers, by name.

        Checkpoints do not hold them: at the start and after a resume they are made from θ and the vectors beside it.
        """
        return {}

    def model(self, vectors: Buffers) -> Array:
        """The parameters to evaluate, hash and export, computed from the vectors named in `model_from`."""
        return vectors[self.model_from[0]]

    def optimizer(self, fast: Fast = plain) -> Optimizer:
        """The local step."""
        return self.chosen.make(fast) if self.chosen else Sgd(fast)

    def averaging_rate(self, t: int) -> float:
        """The share a in z ← (1 − a)z + aθ_t, the average's move just before update t + 1; by default to the mean."""
        return 1.0 / (t + 1)

    def worker(self, x: Array, centre: Array, workers: int, fast: Fast) -> WorkerRule:
        """The arithmetic of a worker that starts at x with the given centre. Both are copied."""
        raise NotImplementedError

    def averaging(self, x: Array, vectors: Buffers, ranks: int, fast: Fast) -> AveragingRule:
        """The arithmetic of one of `ranks` ranks, which all exchange at the same step, starting at x.

        `vectors` are those of the centre, named as in `beside`.
        """
        raise NotImplementedError

    def master(self, fast: Fast) -> MasterRule:
        """The arithmetic of a master that merges what workers push (unless the algorithm is `additive`)."""
        raise NotImplementedError

    def rounds(self, theta: Array, total: Array, fast: Fast) -> RoundRule:
        """The arithmetic of a worker of such a master: it pulls Θ into `theta` and pushes `total`."""
        raise NotImplementedError

    def too_stale(self, stale: int) -> bool:
        """Whether the master drops what a worker pushes if it is `stale` updates old."""
        return False

    @property
    def given_speeds(self) -> tuple[float, ...]:
        """The relative speeds of the workers, repeated if there are more of them; () if they are to be measured."""
        return ()

    def steps_of(self, speed: float, fastest: float) -> int:
        """The most minibatches that the master hands to a worker of this speed: above `period` if it need not wait."""
        return self.period


class Slowing(Algorithm, frozen=True):
    """One learning rate for all ranks, which can fall when their common loss stagnates."""

    plateau: Number = 0
    """Above 0, η is divided by 5, then by 2, for all ranks, when their common loss over windows of this many
    minibatches stagnates."""

    def common_rate(self) -> CommonRate:
        return CommonRate(self.plateau)


class SharedBatch(Algorithm, frozen=True):
    """All ranks compute the gradient of one minibatch together, each from its share of the samples."""

    together = True
    batch: Literal["local", "global"] = "local"  # whether training.minibatch is per rank or for all ranks

    def samples_of_step(self, minibatch: int, ranks: int) -> int:
        return minibatch * (ranks if self.batch == "local" else 1)

    def samples_of_gradient(self, minibatch: int, ranks: int) -> int:
        return minibatch if self.batch == "local" else ceil(minibatch / ranks)
