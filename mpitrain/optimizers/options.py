"""What every optimizer's table of options has: `[algorithm.optimizer]` of the configuration."""

from typing import Annotated, Any, ClassVar

import msgspec

from mpitrain.optimizers.interface import Optimizer
from mpitrain.rules import Fast

NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e30)]
Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e30)]


class Options(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Base of the tables, which make the optimizer. The tag is what `algorithm.optimizer.name` says."""

    #: Values of [training] that suit the optimizer on the embedded digits; a configuration overrides them.
    training: ClassVar[dict[str, Any]] = {}

    def make(self, fast: Fast) -> Optimizer:
        """The optimizer with these options."""
        raise NotImplementedError
