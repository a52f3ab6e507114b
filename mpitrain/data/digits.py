"""The handwritten digits: 1797 scans of 8 x 8 pixels in 17 shades, embedded as two shards beside this module.

They are the test part of the UCI collection (E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits, 1998,
https://doi.org/10.24432/C50P49, CC BY 4.0), in its order; every fifth scan is held out. The scans of each of the 13
writers follow one another, so train and test share writers: a new writer's digits are harder.
"""

import filecmp
from pathlib import Path

from mpitrain.config import Config
from mpitrain.data.shards import folder_parts, require_own
from mpitrain.errors import naming
from mpitrain.files import write_whole


def embedded() -> Path:
    """The folder of the embedded shards."""
    return Path(__file__).parent


def data_path(config: Config) -> Path:
    """The shard folder of a configuration, by default that of the digits."""
    return Path(config.data.path) if config.data.path else embedded()


def prepare_digits(folder: Path) -> None:
    """Write the digits into `folder`: 1438 scans for training, 359 for testing. Raises BadInput naming a file, or the
    folder if it holds shards of another corpus."""
    wanted = {path.name: path for paths in folder_parts(embedded()).values() for path in paths}
    with naming(folder):
        require_own(folder, lambda path: path.name in wanted and filecmp.cmp(path, wanted[path.name], shallow=False))
    for name, path in wanted.items():
        write_whole(folder / name, path.read_bytes())
