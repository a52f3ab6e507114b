"""What the option tables of all algorithms have in common."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

if TYPE_CHECKING:
    from mpitrain.config import Config
    from mpitrain.models import Network

# What a value of the configuration can be: every key has one of these types, a Literal or bool. The upper bounds lie
# beyond all use: they keep infinity out, and everything that is reckoned from several keys within int64 and float64.
Count = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
Number = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Large = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Few = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
Handful = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e30)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e30)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Amount = Annotated[float, msgspec.Meta(gt=0, le=1e9)]  # epochs, seconds, gigabytes
AmountOrNone = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Text = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*$")]  # no NUL, which files' names cannot hold


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

    def resumed(self, eta: float, before: int, now: int) -> str:
        """What else is different when a run goes on with `now` workers after `before`, at the learning rate η; ""
        where nothing is."""
        return ""

    def workers(self, ranks: int) -> int:
        """How many of the ranks compute gradients."""
        return 1
