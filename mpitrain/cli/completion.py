"""Completion in the shell, by argcomplete: commands, options and files, keys of the configuration and their values."""

import argparse
import os

from msgspec import inspect

from mpitrain.config import Config
from mpitrain.errors import library
from mpitrain.keys import values_of
from mpitrain.models.presets import PRESETS


def complete(parser: argparse.ArgumentParser) -> None:
    """Print what may follow in the shell's command line, and leave."""
    (commands,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    for command in commands.choices.values():
        for action in command._actions:
            if action.dest == "set":
                action.completer = settings
    given = os.environ["COMP_LINE"].split()[int(os.environ["_ARGCOMPLETE"]) :]
    if given and not any(name.startswith(given[0]) for name in commands.choices):
        parser = commands.choices["train"]
    library("argcomplete", "completion needs argcomplete", "completion").autocomplete(parser)


def settings(prefix: str, **_: object) -> list[str]:
    """What --set may be given: keys, or, if `prefix` names one already, its values."""
    known = {*values_of(inspect.type_info(Config)), *(("model.preset", name) for name in PRESETS)}
    key, equals, _value = prefix.partition("=")
    return sorted({f"{name}={value}" if equals else f"{name}=" for name, value in known if not equals or name == key})
