"""The tables of a configuration and the types of their keys, in addition to Literal and bool.

The upper bounds exceed all practical values: they exclude infinity, and keep whatever is computed from several keys
within the ranges of int64 and float64.
"""

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
Number = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Large = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Few = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
Handful = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Amount = Annotated[float, msgspec.Meta(gt=0, le=1e9)]  # epochs, seconds, gigabytes
AmountOrNone = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Text = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*$")]  # without NUL, which file names cannot contain
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e30)]
Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e30)]


class Section(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A table of the configuration file."""
