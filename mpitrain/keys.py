"""The base class of a configuration's tables, the types of their keys besides Literal and bool, and tables by tag.

The upper bounds exceed all practical values: they exclude infinity, and keep whatever is computed from several keys
within the ranges of int64 and float64.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import inspect

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


Kind = TypeVar("Kind", bound=msgspec.Struct)


def tagged(base: type[Kind], package: str, *modules: str) -> dict[str, type[Kind]]:
    """The subclasses of `base` that have a tag and are in these modules of the package, by tag."""
    there = [each for name in modules for each in vars(import_module(f"{package}.{name}")).values()]
    kinds = [kind for kind in there if isinstance(kind, type) and issubclass(kind, base)]
    return {str(kind.__struct_config__.tag): kind for kind in kinds if kind.__struct_config__.tag is not None}


def values_of(kind: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Each key at or below `key` of a `msgspec.inspect` type, with each of its values; "" for a number or a text."""
    match kind:
        case inspect.UnionType(types=kinds):
            for each in kinds:
                yield from values_of(each, key)
        case inspect.StructType(fields=fields, tag_field=tag_field, tag=tag):
            if tag_field:
                yield f"{key}.{tag_field}", str(tag)
            for field in fields:
                yield from values_of(field.type, f"{key}.{field.encode_name}".lstrip("."))
        case inspect.LiteralType(values=values):
            yield from ((key, str(value)) for value in values)
        case inspect.BoolType():
            yield from ((key, "false"), (key, "true"))
        case inspect.NoneType():  # a file cannot say it
            pass
        case _:
            yield key, ""
