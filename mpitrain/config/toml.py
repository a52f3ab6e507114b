"""Tables of keys and values: read from TOML, changed as `--set` says, and written as TOML."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import numpy as np
import tomli_w

from mpitrain.config.tables import Config
from mpitrain.errors import BadInput, naming
from mpitrain.files import Record


def read_toml(path: Path) -> Record:
    """The content of a TOML file. Raises BadInput naming the file."""
    with naming(path), naming(f"{path}: not TOML", ValueError):
        if path.is_dir():
            raise BadInput(f"{path}: a folder, not a configuration file; --resume {path} continues a run")
        return parse_toml(path, path.read_text(encoding="utf-8-sig"))  # editors of Windows write a byte order mark


def parse_toml(path: Path, text: str) -> Record:
    """The content of a TOML file that has been read. Raises BadInput naming the file."""
    # ValueError is raised for faults of TOML and, by Python, for integers with more than 4300 digits
    with naming(f"{path}: not TOML", ValueError):
        try:
            return tomllib.loads(text)
        except RecursionError:
            raise BadInput(f"{path}: brackets are nested too deeply") from None


def with_keys(table: Record, overrides: Iterable[str]) -> Record:
    """Apply `set_key` to the table with each override; return the table."""
    for override in overrides:
        set_key(table, override)
    return table


def set_key(table: Record, override: str) -> None:
    """Set `a.b=value` in the table; a value that is not TOML is used as a string. Raises BadInput naming it."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise BadInput(f"--set {override}: expected key=value")
    if any("\ud800" <= letter <= "\udfff" for letter in override):  # how Python represents bytes that are not UTF-8
        raise BadInput(f"--set {override}: not UTF-8")
    try:
        (value,) = tomllib.loads(f"value = {text}").values()
    except ValueError:  # also where other lines follow it
        value = text
    except RecursionError:
        raise BadInput(f"--set {key.strip()}: brackets are nested too deeply") from None
    *parents, last = key.strip().split(".")
    for name in parents:
        inner = table.setdefault(name, {})
        if not isinstance(inner, dict):
            raise BadInput(f"--set {override}: {name} is not a table")
        table = inner
    table[last] = value


def flat(table: Mapping[str, object], prefix: str = "") -> Record:
    """The keys of a table with dots, as in `--set`, and their values. A list of tables stays one value."""
    found: Record = {}
    for key, value in table.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def overrides_of(table: Mapping[str, object]) -> list[str]:
    """The keys of a table and their values, as `set_key` takes them. Raises BadInput naming a key whose value cannot be
    written in TOML."""
    found = []
    for key, value in flat(table).items():
        with naming(f"{key} = {value!r}: not a value of TOML's", TypeError):
            found.append(f"{key}={_inline(value)}")
    return found


def _inline(value: object) -> str:
    """A value as TOML on one line. Raises TypeError for a value that TOML cannot express."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_inline(str(key))} = {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return tomli_w.dumps({"": str(value) if isinstance(value, Path) else value}).removeprefix('"" = ').rstrip("\n")


def to_toml(config: Config) -> str:
    """The configuration as TOML, which resolves to the same configuration."""
    return tomli_w.dumps({name: _without_none(section) for name, section in msgspec.to_builtins(config).items()})


def _without_none(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value
