"""How much memory do all ranks of a node take together for their data, and how long does reading take?

    mpirun -n N python benchmarks/memory/memory.py FOLDER [--make GB [--kind images|frames]] [--set KEY=VALUE]

Each rank opens the training part as a training does, and gathers its share of an epoch's samples; then every rank's
share of the memory (its proportional set size) is read. With `--make` the first rank first writes random data into
FOLDER. With `--set data.memory_limit_gb=100` each rank keeps its own copy of the samples.
"""

import argparse
import re
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from launch import require_ranks

from mpitrain import config as configuration
from mpitrain.api.options import TrainOptions
from mpitrain.api.setup import prepare
from mpitrain.data.shards import shard_name, utterance_arrays, write_shard
from mpitrain.mpi import Transport
from mpitrain.training.gradients import orders_of

SHARD = 64e6  # bytes of a shard
MINIBATCH = 256


def make(folder: Path, nbytes: float, kind: str) -> None:
    """Random bytes, which gzip cannot shorten, as 32 x 32 pixels in colour or as frames of 40 features."""
    draw, shards = np.random.default_rng(1), max(round(nbytes / SHARD), 1)
    for number in range(shards):
        rows = round(nbytes / shards / (3072 if kind == "images" else 160))
        targets = draw.integers(0, 10, rows).astype(np.int32)
        if kind == "images":
            arrays = {"images": draw.integers(0, 256, (rows, 32, 32, 3), np.uint8), "targets": targets}
        else:
            arrays = utterance_arrays([draw.standard_normal((rows, 40), np.float32)], [targets])
        write_shard(folder / shard_name("train", number, shards), kind, arrays, {"classes": 10})


def main() -> None:
    """Print one line of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--make", type=float, metavar="GB")
    parser.add_argument("--kind", choices=("images", "frames"), default="images")
    parser.add_argument("--set", action="append", default=[])
    words = parser.parse_args()
    require_ranks(1, or_more=True)
    transport = Transport()
    if words.make and transport.rank == 0:
        with transport.working():
            make(words.folder, words.make * 1e9, words.kind)
    transport.barrier("the data")
    given = [f"data.path={words.folder}", "data.node_memory_gb=100", "model.preset=zhang2013-dnn", "model.width=0.01"]
    config = configuration.load(None, [*given, *words.set])
    start = transport.clock()
    prepared = prepare(transport, config, TrainOptions(), {}, None)
    seconds = transport.clock() - start
    corpus = prepared.corpus
    orders = orders_of(1, corpus.samples, None, prepared.sharing)
    room = corpus.form.room(MINIBATCH, np.float32)
    ready = transport.clock()
    for first in range(transport.rank * MINIBATCH, corpus.samples - MINIBATCH + 1, transport.size * MINIBATCH):
        corpus.gather(orders.part(0, first, MINIBATCH), room, (0, first))
        transport.heartbeat()
    transport.barrier("all to have read")
    gathered = transport.clock() - ready
    rollup = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    mine = int(re.findall(r"^Pss:\s+(\d+) kB$", rollup, re.MULTILINE)[0]) * 1024
    total = sum(map(int, transport.gather_texts(str(mine), "the memory")))
    if transport.rank == 0:
        held = corpus.held_bytes + 4 * corpus.samples
        print(
            f"{transport.size} ranks, {held / 1e6:,.0f} MB of samples: {total / 1e6:,.0f} MB in all "
            f"({(total - 1.1 * held) / 1e6 / transport.size:,.0f} MB a rank beside 1.1 times the samples), "
            f"prepared in {seconds:.2f} s, gathered in {gathered:.2f} s"
        )
    transport.barrier("the end")


if __name__ == "__main__":
    main()
