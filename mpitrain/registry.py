"""Kinds of one thing, each with its options in a module of its own, and found by its tag."""

from importlib import import_module
from typing import TypeVar

import msgspec

Kind = TypeVar("Kind", bound=msgspec.Struct)


def tagged(base: type[Kind], package: str, *modules: str) -> dict[str, type[Kind]]:
    """The subclasses of `base` with a tag that these modules of the package hold, by tag."""
    there = [each for name in modules for each in vars(import_module(f"{package}.{name}")).values()]
    kinds = [kind for kind in there if isinstance(kind, type) and issubclass(kind, base)]
    return {str(kind.__struct_config__.tag): kind for kind in kinds if kind.__struct_config__.tag is not None}
