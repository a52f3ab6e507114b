"""The attributes of a shard that describe its classes and features: `class_names` and `preparation`.

`class_names` holds the names in the order of the classes, separated by blanks. `preparation` is a JSON object that
distinguishes features of one preparation from those of another, such as {"bins": 23, "cmvn": "none"}.
"""

import json
from collections.abc import Mapping

import numpy as np

from mpitrain.data.validation import Attributes
from mpitrain.files import Record

NAMES, PREPARATION = "class_names", "preparation"


def named(names: list[str]) -> str:
    """The attribute `class_names`."""
    return " ".join(names)


def prepared(how: Record) -> str:
    """The attribute `preparation`."""
    return json.dumps(how, sort_keys=True)


def class_names(attributes: Attributes) -> list[str] | None:
    """The names of the classes from 0 on, possibly of the first ones only; None if there are none or too many."""
    found, names = attributes.get(NAMES), list[str]()
    if isinstance(found, np.ndarray):
        names = [name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in found.reshape(-1)]
    elif isinstance(found, str):
        names = found.split()
    return names if 0 < len(names) <= int(attributes["classes"]) else None


def preparation(attributes: Attributes) -> Record:
    """How the features were prepared, as far as the shard describes it."""
    found = attributes.get(PREPARATION)
    try:
        how = json.loads(found) if isinstance(found, str) else None
    except (ValueError, RecursionError):  # written by another tool
        how = None
    return how if isinstance(how, dict) else {}


def names_apart(found: list[str] | None, wanted: list[str] | None) -> str:
    """The first class whose names differ, with both names; "" if there is none, or if one side has no names."""
    for number, (name, known) in enumerate(zip(found or (), wanted or (), strict=False)):
        if name != known:
            return f"class {number} is called {name}, the network was trained on {known}"
    return ""


def preparations_apart(found: Mapping[str, object], wanted: Mapping[str, object]) -> str:
    """The first key whose values differ, with both values; "" if there is none. Keys of one side are ignored."""
    for key in sorted(set(found) & set(wanted)):
        if found[key] != wanted[key]:
            values = (value if isinstance(value, str) else json.dumps(value) for value in (found[key], wanted[key]))
            return "{} = {}, the network was trained on {}".format(key, *values)
    return ""
