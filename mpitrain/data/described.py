"""What the attributes of a shard say of its classes and features: the classes' names, and how it was prepared.

`class_names` holds the names in the order of the classes, with blanks between. `preparation` is a JSON object of
whatever makes features of one preparation differ from those of another, such as {"bins": 23, "cmvn": "none"}.
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
    """The names of the classes from 0 on, perhaps not of all; None where they have none, or more than classes."""
    found = attributes.get(NAMES)
    if isinstance(found, np.ndarray):
        found = [name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in found.reshape(-1)]
    names = found.split() if isinstance(found, str) else found
    return names if isinstance(names, list) and 0 < len(names) <= int(attributes["classes"]) else None


def preparation(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """How the features were prepared, as far as the shard says."""
    found = attributes.get(PREPARATION)
    try:
        how = json.loads(found) if isinstance(found, str) else None
    except (ValueError, RecursionError):  # the word of another tool
        how = None
    return how if isinstance(how, dict) else {}


def names_apart(found: list[str] | None, wanted: list[str] | None) -> str:
    """The first class that the two call differently, with both names; "" where there is none, or one has no names."""
    for number, (name, known) in enumerate(zip(found or (), wanted or (), strict=False)):
        if name != known:
            return f"class {number} is called {name}, the network was trained on {known}"
    return ""


def preparations_apart(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The first key that both have with other values, with these; "" where there is none."""
    for key in sorted(set(found) & set(wanted)):
        if found[key] != wanted[key]:
            values = (value if isinstance(value, str) else json.dumps(value) for value in (found[key], wanted[key]))
            return "{} = {}, the network was trained on {}".format(key, *values)
    return ""
