"""What every algorithm has: options, and the arithmetic of the roles that ranks play in it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

from mpitrain.algorithms.roles import AveragingRule, MasterRule, WorkerRule
from mpitrain.flat import Array
from mpitrain.optimizers import AnyOptimizer, Buffers, Optimizer, Sgd
from mpitrain.optimizers.options import Fraction as Fraction
from mpitrain.optimizers.options import NotNegative as NotNegative
from mpitrain.optimizers.options import Positive as Positive
from mpitrain.rules import Fast, plain
from mpitrain.schedules.local_rate import LocalRate

if TYPE_CHECKING:
    from mpitrain.config import Config
    from mpitrain.models.model import Model
    from mpitrain.schedules.stages import Settings

#: z, x, scratch, t ↦ z takes in x_t just before update t + 1.
Average = Callable[[Array, Array, Array, int], None]

# What a value of the configuration can be: every key has one of these types, a Literal or bool. The upper bounds lie
# beyond all use: they keep infinity out, and everything that is reckoned from several keys within int64 and float64.
Count = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
Number = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Large = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Few = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
Handful = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Amount = Annotated[float, msgspec.Meta(gt=0, le=1e9)]  # epochs, seconds, gigabytes
AmountOrNone = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Text = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*$")]  # no NUL, which files' names cannot hold


class Algorithm(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Base of the option tables. `protocol` names the module of mpitrain.protocols that carries the algorithm.

    An algorithm overrides what differs: a method that has no default here belongs to protocols that it does not use.
    """

    protocol: ClassVar[str]
    #: Whether rank 0 of several is a master that computes no gradients.
    has_master: ClassVar[bool] = False
    #: Whether all members end with the same parameters.
    replicated: ClassVar[bool] = False
    #: Whether the local step may be any optimizer, chosen by [algorithm.optimizer].
    any_optimizer: ClassVar[bool] = False
    #: The vectors of a checkpoint that `model` is made of.
    model_from: ClassVar[tuple[str, ...]] = ("theta",)
    #: Values of [training] that suit the algorithm on the embedded digits; a configuration overrides them.
    training: ClassVar[dict[str, Any]] = {}
    #: Named settings of this table: a paper's, chosen by the key `preset`.
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    #: What else of the configuration a preset implies.
    recipes: ClassVar[dict[str, dict[str, Any]]] = {}
    chosen: AnyOptimizer | None = msgspec.field(default=None, name="optimizer")  # None: the algorithm's own

    # ---- what it needs

    def check(self, config: "Config") -> None:
        """Raise BadInput for a combination that cannot work."""

    def check_settings(self, config: "Config", settings: list["Settings"]) -> None:
        """Raise BadInput for what holds in one of the stages, and cannot work."""

    def fits(self, network: "Model", ranks: int) -> None:
        """Raise BadInput for a network that cannot be trained so on so many ranks."""

    def check_steps(self, steps: int) -> None:
        """Raise BadInput for what a worker with so few minibatches to train cannot do."""

    def resumed(self, eta: float, before: int, now: int) -> str:
        """What else is different when a run goes on with `now` workers after `before`, at the learning rate η; ""
        where nothing is."""
        return ""

    def warnings(self, eta: float, workers: int) -> list[tuple[str, dict[str, float]]]:
        """Lines on what may not converge at the learning rate `eta` with so many workers, each with its numbers."""
        return []

    def workers(self, ranks: int) -> int:
        """How many of the ranks compute gradients."""
        return 1

    def samples_of_step(self, minibatch: int, ranks: int) -> int:
        """Samples of one step that all ranks take together, where training.minibatch is `minibatch`."""
        return minibatch

    @property
    def independent(self) -> bool:
        """Whether samples are drawn from the whole corpus, with replacement, instead of the epoch's order."""
        return False

    @property
    def chunks_together(self) -> int:
        """Chunks that are shuffled together when samples are read so (EASGD's prefetch); 0 when they are not."""
        return 0

    @property
    def starts_apart(self) -> bool:
        """Whether workers start at other seeds than the centre (EASGD's footnote 7: it traps them)."""
        return False

    def local_rate(self) -> LocalRate:
        """A worker's own learning rate, which may fall with its clock."""
        return LocalRate(0.0, 0)

    # ---- its arithmetic

    def beside(self, theta: Array) -> Buffers:
        """The vectors kept beside θ, as they are at the start, by name."""
        return self.optimizer().buffers(theta)

    def own(self, theta: Array) -> Buffers:
        """The vectors that each rank keeps for itself from the start, by name."""
        return {}

    def model(self, vectors: Buffers) -> Array:
        """What is evaluated, hashed and exported, made of the vectors named in `model_from`."""
        return vectors["theta"]

    def optimizer(self, fast: Fast = plain) -> Optimizer:
        """The local step."""
        return self.chosen.make(fast) if self.chosen else Sgd(fast)

    def average(self, fast: Fast) -> Average | None:
        """The average over time that is kept beside θ, where the algorithm has one."""
        return None

    def worker(self, x: Array, centre: Array, workers: int, fast: Fast) -> WorkerRule:
        """The arithmetic of a worker that starts at x while the centre is `centre`. Both are copied."""
        raise NotImplementedError

    def averaging(self, x: Array, vectors: Buffers, ranks: int, fast: Fast) -> AveragingRule:
        """The arithmetic of one of so many ranks that all exchange at the same step, and that starts at x.

        `vectors` are the centre's, as `beside` names them.
        """
        raise NotImplementedError

    def master(self, fast: Fast) -> MasterRule:
        """The arithmetic of a master that computes."""
        raise NotImplementedError
