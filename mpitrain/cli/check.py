"""`info --check`: measure what a training will meet on these ranks, within two minutes, and advise what to change."""

import os
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from mpitrain.device import available
from mpitrain.errors import BadInput, naming, some
from mpitrain.flat import Array
from mpitrain.models.network import build
from mpitrain.mpi import Transport
from mpitrain.mpi.links import Link, link, pairs
from mpitrain.sampling.batch import Batch

#: The network of which a gradient and a sum are measured: that of Strom 2015, 14.6 million weights, minibatch 64.
NETWORK, INPUT, CLASSES, MINIBATCH = "strom2015-dnn", (17, 20), 3000, 64
WRITTEN, READ, SMALL = 64 << 20, 256 << 20, 8 << 20  # bytes
SLOW = 50e6  # bytes per second of storage


@dataclass(frozen=True)
class Found:
    """What was measured. None: not present on these ranks, or not asked for."""

    ranks: int
    nodes: int
    ranks_a_node: int  # of the fullest node
    cores: int  # of the node that has the fewest
    threads: int  # of each rank
    passive: bool  # whether one-sided reads are served while their target computes
    gradient: float  # seconds, of the slowest rank
    vector: int  # bytes of the network
    sum: float  # seconds to sum a vector of `vector` bytes over all ranks
    within: Link | None
    between: Link | None
    write: float | None  # bytes per second
    read: float | None  # of rank 0's node, while all nodes read; None also where the data are small
    gpu: bool = False  # whether a rank has a GPU, on which nothing of this was computed

    def lines(self) -> list[tuple[str, str]]:
        """Names and values to print."""
        few = f"not measured (needs --data with at least {SMALL >> 20} MiB)"
        none, network = "not measured", f"{NETWORK}, {self.vector / 4e6:.1f} M weights, minibatch {MINIBATCH}"
        return [
            ("within a node", str(self.within or none)),
            ("between nodes", str(self.between or none)),
            ("a gradient", f"{self.gradient:.3f} s on CPUs ({network})"),
            ("sum over all ranks", f"{self.sum:.3f} s for a vector of this network"),
            ("run folder", none if self.write is None else f"written at {self.write / 1e6:,.0f} MB/s"),
            ("data", few if self.read is None else f"read at {self.read / 1e6:,.0f} MB/s"),
        ]


def advice(found: Found) -> list[str]:
    """What to change, in plain lines."""
    busy = found.ranks_a_node * found.threads
    share = f"{found.ranks_a_node} ranks of {some(found.threads, 'thread')} share {some(found.cores, 'core')} of a node"
    idle = f"a node has {some(found.cores - busy, 'idle core')}"
    reads = "MPI serves one-sided reads only while their target calls MPI"
    slow = "the run folder is slow: write checkpoints rarely (run.checkpoint_every), or elsewhere (run.out)"
    said = (
        (found.ranks == 1, "one rank: if more were started, the launcher does not fit this MPI (docs/clusters.md)"),
        (busy > found.cores, f"{share}: more ranks train no faster there; start fewer, or set run.threads"),
        (2 * busy <= found.cores, f"{idle}: start more ranks, or set a larger run.threads"),
        *((True, line) for line in _of_exchange(found)),
        (found.nodes > 1 and not found.passive, f"{reads}: run.exchange = 'auto' takes messages"),
        ((found.write or inf) < SLOW, slow),
        (
            (found.read or inf) < SLOW,
            "the data are slow to read: copy them to the node's own disk, or raise data.node_memory_gb",
        ),
    )
    return [line for holds, line in said if holds] or ["nothing to change"]


def _of_exchange(found: Found) -> list[str]:
    """What to train a network of this size by, given the links. A centre's link carries the vectors of all workers."""
    link = found.between if found.nodes > 1 else found.within
    if link is None:
        return []
    if found.gpu:
        return [
            "on GPUs gradients take less time than here, and sums weigh more: `python -m mpitrain advise` trains on "
            "them, and finds out what is sooner for a network of your own (docs/advise.md)"
        ]
    size, speedup = "for a network of this size, before overlap", found.ranks / (1 + found.sum / found.gradient)
    if speedup > 0.8 * found.ranks:
        return [f"allreduce on {found.ranks} ranks computes {speedup:.1f} times as much as one ({size})"]
    tau = max(ceil(found.ranks * found.vector / link.bandwidth / found.gradient), 4)
    slower = "less than one rank" if speedup < 1 else f"only {speedup:.1f} times as much as one"
    return [
        f"allreduce on {found.ranks} ranks computes {slower}, because a sum takes {found.sum:.2f} s and a gradient "
        f"{found.gradient:.2f} s ({size})",
        f"take sparse-delta, or easgd or block-momentum with algorithm.tau = {tau} or more",
        "`python -m mpitrain advise` finds out which, and how, for a network of your own: docs/advise.md",
    ]


def measure(transport: Transport, threads: int, passive: bool, data: Path | None, out: Path | None) -> Found:
    """Measure; storage only in the folders `data` and `out`, if given. Collective. Raises BadInput naming a folder."""
    within, between = pairs(transport.node_leaders)
    cores = transport.gather_texts(str(transport.node_cores), "the nodes' cores")
    vector = np.zeros(build(NETWORK, INPUT, CLASSES).layout.size, np.float32)
    with threadpool_limits(threads):
        gradient = _slowest(transport, _gradient(vector))
    return Found(
        ranks=transport.size,
        nodes=transport.nodes,
        ranks_a_node=max(Counter(transport.node_leaders).values()),
        cores=min(map(int, cores)),
        threads=threads,
        passive=passive,
        gradient=gradient,
        vector=vector.nbytes,
        sum=_slowest(transport, min(_sum(transport, vector) for _ in range(3))),
        within=link(transport, within),
        between=link(transport, between),
        gpu="yes" in transport.gather_texts("yes" if available() else "no", "the GPUs"),
        # Last: where one rank raises, the others are asked nothing more.
        write=None if out is None or transport.rank else transport.alive_while(lambda: _write(out)),
        read=None if data is None or not transport.leader else transport.alive_while(lambda: _read(data)),
    )


def _slowest(transport: Transport, seconds: float) -> float:
    most = np.array([seconds])
    transport.wait(transport.start_maximum(most), "the slowest rank")
    return float(most[0])


def _gradient(vector: Array) -> float:
    """Seconds of a gradient: the fastest of three, after a first one that is not counted."""
    network = build(NETWORK, INPUT, CLASSES)
    batch = Batch(np.zeros((MINIBATCH, *INPUT), np.float32), np.zeros(MINIBATCH, np.int32))
    theta, out = network.initial(1), np.empty_like(vector)
    times = []
    for _ in range(4):
        began = time.perf_counter()
        network.loss_and_gradient(theta, out, batch)
        times.append(time.perf_counter() - began)
    return min(times[1:])


def _sum(transport: Transport, vector: Array) -> float:
    transport.barrier("the others")
    began = time.perf_counter()
    transport.sum(vector, "a sum over all ranks")
    return time.perf_counter() - began


def _write(folder: Path) -> float:
    """Bytes per second, written through to the disk."""
    path, block = folder / ".mpitrain-check", os.urandom(1 << 20)
    try:
        with naming(f"--out: {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            began = time.perf_counter()
            with path.open("wb", buffering=0) as file:
                for _ in range(WRITTEN // len(block)):
                    file.write(block)
                os.fsync(file.fileno())
            return WRITTEN / (time.perf_counter() - began)
    finally:
        with suppress(OSError):
            path.unlink()


def _read(folder: Path) -> float | None:
    """Bytes per second at which the first shards are read, past the page cache; None where they are so small that most
    of the time goes to opening them."""
    taken, began = 0, time.perf_counter()
    with naming(f"--data: {folder}"):
        for path in sorted(folder.glob("*.h5")):
            with path.open("rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                while taken < READ and (block := file.read(1 << 20)):
                    taken += len(block)
    if not taken:
        raise BadInput(f"--data: {folder}: holds no shards (*.h5)")
    return taken / (time.perf_counter() - began) if taken >= SMALL else None
