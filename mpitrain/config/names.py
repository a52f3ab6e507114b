"""What keys are called: an unknown name, or a value of the wrong type, is refused in a line that names it."""

from collections.abc import Mapping
from functools import cache

import msgspec
from msgspec import inspect

from mpitrain.algorithms import ALGORITHMS
from mpitrain.algorithms.interface import Algorithm
from mpitrain.algorithms.optimizers import OPTIMIZERS
from mpitrain.config.tables import Config
from mpitrain.errors import ALIASES, BadInput, nearest
from mpitrain.files import Record
from mpitrain.keys import values_of

_type = cache(inspect.type_info)
#: How messages of msgspec begin, and clearer messages in their place.
PLAIN = {
    "Expected `array` of length <= 2": "expected one or two numbers in brackets, such as [5,5]",
    "Expected `array`, got": "expected numbers in brackets, such as [5,5]",
    "Expected `str` matching regex": "holds a NUL character",
}


def check_names(table: Record) -> None:
    """Raise BadInput naming a key that does not exist, or that must be a table and is not."""
    _check(table, _type(Config))


def _check(value: object, kind: inspect.Type, key: str = "") -> None:
    """The same at or below `key`, whose value is to be of this kind."""
    for each in kind.types if isinstance(kind, inspect.UnionType) else (kind,):
        if isinstance(each, inspect.ListType) and _tables(each.item_type):
            if not isinstance(value, list):
                raise BadInput(f"{key}: expected tables, each under a line [[{key}]]")
            for number, table in enumerate(value):
                _check(table, each.item_type, f"{key}[{number}]")
    if not (tables := _tables(kind)):
        return
    if not isinstance(value, dict):
        example = ", such as algorithm.optimizer.name = 'nesterov'" if key == "algorithm.optimizer" else ""
        raise BadInput(f"{key}: expected a table{example}")
    prefix = f"{key}." if key else ""
    table = tables[_kind(value, tables, prefix)]
    if key == "algorithm" and "optimizer" in value and not ALGORITHMS[str(table.tag)].any_optimizer:
        choosing = algorithms_with("any_optimizer")
        raise BadInput(f"algorithm.optimizer: {table.tag} has its own optimizer; one can be chosen with {choosing}")
    fields = {field.encode_name: field.type for field in table.fields}
    for name, inner in value.items():
        if name in fields:
            _check(inner, fields[name], f"{prefix}{name}")
        elif name != table.tag_field:
            raise BadInput(_unknown(name, [*fields, *filter(None, [table.tag_field])], prefix, table.tag))


def _tables(kind: inspect.Type) -> dict[object, inspect.StructType]:
    """The types of tables that a type, or a union, consists of, by their tags; None for a table without a tag."""
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return {each.tag: each for each in kinds if isinstance(each, inspect.StructType)}


def algorithms_with(ability: str) -> str:
    """The names of the algorithms whose class has an `ability`, such as any_optimizer. Where that is a property,
    it depends on `algorithm.order`, and with the default order it is false."""
    able = {name: found for name, kind in ALGORITHMS.items() if (found := getattr(kind, ability))}
    return ", ".join(name + " (not in its default order)" * isinstance(found, property) for name, found in able.items())


def _kind(table: Record, kinds: Mapping[object, inspect.StructType], prefix: str) -> object:
    """The tag of a table, which chooses one of `kinds`; None for kinds without tags. Raises BadInput for an unknown
    tag, or a missing one without a default."""
    tag = next(iter(kinds.values())).tag_field
    if tag is None:
        return None
    name = table.get(tag, "asgd" if prefix == "algorithm." else None)
    if not isinstance(name, str) or name not in kinds:
        said = ": missing" if name is None else f" = {name!r}: unknown"
        if prefix == "algorithm." and ALIASES.get(str(name), str(name)) in ("algorithm.optimizer.name", *OPTIMIZERS):
            choosing = algorithms_with("any_optimizer")
            raise BadInput(f"{prefix}{tag}{said}; an optimizer is algorithm.optimizer.name, with {choosing}")
        raise BadInput(f"{prefix}{tag}{said}{nearest('' if name is None else str(name), list(map(str, kinds)))}")
    return name


def _unknown(key: str, known: list[str], prefix: str, tag: object) -> str:
    """The message about a key that tables of the kind `tag` do not have."""
    owners = [name for name, kind in ALGORITHMS.items() if key in kind.__struct_encode_fields__]
    if prefix == "algorithm." and owners:
        return f"unknown key algorithm.{key} of {tag}; it is one of {', '.join(owners)}"
    meant = ALIASES.get(key)
    hint = nearest(key, known, prefix) if meant is None else f"; here it is {meant}"
    return f"unknown key {prefix}{key}{hint}"


def readable(error: msgspec.ValidationError, algorithm: type[Algorithm] = Algorithm) -> str:
    """An error as a message: the key, and what is wrong with its value. `algorithm`: the type of [algorithm]."""
    message, _, where = str(error).partition(" - at `$")
    for said, plain in PLAIN.items():
        if message.startswith(said):
            message = plain
    key = where.rstrip("`").lstrip(".") or "configuration"
    kind, at = (algorithm, "algorithm") if key.startswith("algorithm.") else (Config, "")
    allowed = {value or "a number" for name, value in values_of(inspect.type_info(kind), at) if name == key}
    if allowed - {"a number"}:
        message = f"{message.removeprefix('Invalid enum value ')}: must be {' or '.join(sorted(allowed))}"
    return f"{key}: {message}"
