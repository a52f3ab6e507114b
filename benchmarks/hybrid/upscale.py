"""The embedded digits, each pixel repeated 4 x 4 times, so that convolutions have something to do.

python benchmarks/hybrid/upscale.py FOLDER
python benchmarks/hybrid/table.py RESULTS --set data.path=FOLDER --set model.preset=easgd-cifar
"""

import sys
from pathlib import Path

from mpitrain.data.digits import embedded
from mpitrain.data.reader import read_shard
from mpitrain.data.shards import folder_parts, write_shard

TIMES = 4


def main(folder: Path) -> None:
    """Write the shards into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for paths in folder_parts(embedded()).values():
        for path in paths:
            shard = read_shard(path)
            images = shard.arrays["images"].repeat(TIMES, axis=1).repeat(TIMES, axis=2)
            attributes = {key: value for key, value in shard.attributes.items() if not key.startswith("xxh3")}
            write_shard(folder / path.name, shard.kind, {**shard.arrays, "images": images}, attributes)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
