"""What does `mpitrain.distribute` cost a loop of one's own, and what does DistributedDataParallel?

    python benchmarks/loop/cost.py transformer|resnet [--rounds 5] [--batches 40]
    mpirun -n 2 python benchmarks/loop/cost.py transformer|resnet [--rounds 5] [--batches 40]

Alternating in one run: every rank trains on its own by the bare loop, then all together in each way, one thread each.
Prints samples a second of all ranks, and of each way the median of its ratios to the bare loops of its round.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import mpitrain

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "examples" / "transformer"), str(ROOT / "examples" / "resnet")]
from launch import free_port, require_ranks  # noqa: E402
from resnet import build as resnet  # noqa: E402
from transformer import build as transformer  # noqa: E402

WARM = 5  # batches before the clock starts
WAYS: dict[str, dict[str, Any]] = {
    "allreduce": {},
    "block-momentum": {"tau": 10},
    "easgd": {"tau": 10},
    "sparse-delta": {},
}


def task(name: str, samples: int) -> tuple[nn.Module, TensorDataset]:
    """One of the examples' networks, and random samples for it."""
    draw = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    if name == "resnet":
        images = torch.randn(samples, 3, 16, 16, generator=draw)
        return resnet((3, 16, 16), 8), TensorDataset(images, torch.randint(8, (samples,), generator=draw))
    tokens = torch.randint(256, (samples, 129), generator=draw)
    return transformer((128,), 256), TensorDataset(tokens[:, :-1], tokens[:, 1:])


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Any]) -> float:
    """Seconds of the batches after the first few."""
    began = 0.0
    for number, (inputs, targets) in enumerate(batches):
        if number == WARM:
            began = time.perf_counter()
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs).flatten(0, targets.dim() - 1), targets.flatten()).backward()
        optimizer.step()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=("transformer", "resnet"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=40)
    words = parser.parse_args()
    require_ranks(1, or_more=True)
    torch.set_num_threads(1)
    comm, size = MPI.COMM_WORLD, 16 if words.network == "transformer" else 32
    ranks, own = comm.size, (WARM + words.batches) * size

    def alone() -> float:
        model, data = task(words.network, own)
        return train(model, optimizer_of(model), DataLoader(data, size, shuffle=True))

    def together(algorithm: str) -> float:
        model, data = task(words.network, own * ranks)
        optimizer = optimizer_of(model)
        with tempfile.TemporaryDirectory() as folder:
            folder = comm.bcast(folder)
            with mpitrain.distribute(model, optimizer, algorithm, out=Path(folder, "run"), **WAYS[algorithm]) as group:
                seconds = train(model, optimizer, group.share(DataLoader(data, size, shuffle=True)))
            comm.Barrier()
        return seconds

    def ddp() -> float:
        model, data = task(words.network, own)
        return train(
            nn.parallel.DistributedDataParallel(model), optimizer_of(model), DataLoader(data, size, shuffle=True)
        )

    ways: dict[str, Callable[[], float]] = {name: lambda name=name: together(name) for name in WAYS}  # type: ignore[misc]
    if ranks > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(comm.bcast(free_port()))}
        dist.init_process_group("gloo", rank=comm.rank, world_size=ranks)
        ways["DistributedDataParallel, gloo"] = ddp
    ratios: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(words.rounds):
        bare = clocked(comm, alone)
        for name, way in ways.items():
            ratios[name].append(bare / clocked(comm, way))
    if comm.rank == 0:
        rate = words.batches * size * ranks / bare
        print(f"{words.network}, {ranks} rank{'s' * (ranks > 1)}: the bare loop {rate:,.0f} samples/s; of it")
        for name, found in ratios.items():
            print(f"  {name:30} {statistics.median(found):.3f}  ({min(found):.3f} to {max(found):.3f})")
    if dist.is_initialized():
        dist.destroy_process_group()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """That of both examples' kind."""
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def clocked(comm: MPI.Comm, way: Callable[[], float]) -> float:
    """The longest of all ranks' seconds."""
    comm.Barrier()
    return float(comm.allreduce(way(), MPI.MAX))


if __name__ == "__main__":
    main()
