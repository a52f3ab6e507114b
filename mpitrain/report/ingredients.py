"""What runs are trained with besides their configuration: the user's own files and the shards. Once these are edited,
new results are not compared with earlier ones.

The data that a function of `data.import` reads are not compared.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from mpitrain.config import Config
from mpitrain.data import origin
from mpitrain.data.digits import data_path
from mpitrain.data.reader import digest_of
from mpitrain.training import run_code
from mpitrain.training.user_code import specs_of


class Ingredients(NamedTuple):
    """The checksums of the user's files, by key and file name, and of the shards ("" if they are imported)."""

    files: Mapping[str, Mapping[str, str]]
    shards: str


def of_config(config: Config) -> Ingredients:
    """The checksums that a training would have now. Raises BadInput naming what cannot be read."""
    return Ingredients(
        run_code.sums(run_code.choose(specs_of(config), None)),
        "" if config.data.import_ else digest_of(data_path(config)),
    )


def changed(now: Ingredients, run: Path) -> str:
    """The first file, or else the shards, whose checksum differs from that in the folder `run`; "" if none differs."""
    for key, files in now.files.items():
        record = run_code.read(run, key)
        then = files if record is None else record.files.get(key, {})
        for name in sorted({*files, *then}):
            if files.get(name) != then.get(name):
                return f"{name} ({key})"
    told = origin.read(run)
    differ = told is not None and told.digest and now.shards and told.digest != now.shards
    return "data (data.path)" if differ else ""
