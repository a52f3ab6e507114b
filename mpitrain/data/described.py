"""The attributes of a shard that describe its classes and features: `class_names` and `preparation`.

`class_names` holds the names in the order of the classes, separated by blanks. `preparation` is a JSON object that
distinguishes features of one preparation from those of another, such as {"bins": 23, "cmvn": "none"}.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

NAMES, PREPARATION = "class_names", "preparation"


def named(names: list[str]) -> str:
    """The attribute `class_names`."""
    return " ".join(names)


def prepared(how: Mapping[str, Any]) -> str:
    """The attribute `preparation`."""
    return json.dumps(dict(how), sort_keys=True)


def class_names(attributes: Mapping[str, Any]) -> list[str] | None:
    """The names of the classes from 0 on, possibly of the first ones only; None if there are none or too many."""
    found = attributes.get(NAMES)
    if isinstance(found, np.ndarray):
        found = [name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in found.reshape(-1)]
    names = found.split() if isinstance(found, str) else found
    return names if isinstance(names, list) and 0 < len(names) <= int(attributes["classes"]) else None


def preparation(attributes: Mapping[str, Any]) -> dict[str, Any]:
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


def preparations_apart(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The first key whose values differ, with both values; "" if there is none. Keys of one side are ignored."""
    for key in sorted(set(found) & set(wanted)):
        if found[key] != wanted[key]:
            values = (value if isinstance(value, str) else json.dumps(value) for value in (found[key], wanted[key]))
            return "{} = {}, the network was trained on {}".format(key, *values)
    return ""
