"""PyTorch's DistributedDataParallel (gloo) on the network of scaling.py, beside as many independent processes.

python benchmarks/scaling/ddp.py [PROCESSES] [ROUNDS] [MINIBATCHES]        (needs torch; starts the processes itself)

Alternating in one run: every process trains on its own, then all together. Plain SGD, one thread each.
"""

import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from launch import free_port

MINIBATCH, INPUTS, WIDTH, CLASSES = 256, 340, 1024, 1998


def network() -> nn.Module:
    """5×1024 sigmoid."""
    layers: list[nn.Module] = []
    for size in (INPUTS, *[WIDTH] * 4):
        layers += [nn.Linear(size, WIDTH), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


def train(model: nn.Module, minibatches: int) -> float:
    """Samples per second of this process, from a common start to the last process's end."""
    optimiser, loss = torch.optim.SGD(model.parameters(), 0.1), nn.CrossEntropyLoss()
    inputs, targets = torch.randn(MINIBATCH, INPUTS), torch.randint(CLASSES, (MINIBATCH,))
    dist.barrier()
    began = time.perf_counter()
    for _ in range(minibatches):
        optimiser.zero_grad()
        loss(model(inputs), targets).backward()
        optimiser.step()
    seconds = torch.tensor([time.perf_counter() - began])
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return minibatches * MINIBATCH * dist.get_world_size() / float(seconds)


def worker(rank: int, processes: int, rounds: int, minibatches: int) -> None:
    """One process of the group."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=processes)
    alone, together = network(), nn.parallel.DistributedDataParallel(network())
    train(alone, min(minibatches, 3)), train(together, min(minibatches, 3))
    ratios = []
    for _ in range(rounds):
        one, all_ = train(alone, minibatches), train(together, minibatches)
        ratios.append(all_ / one)
        if rank == 0:
            print(f"{processes} x alone {one:7.0f} samples/s   DDP {all_:7.0f}   ratio {ratios[-1]:.3f}", flush=True)
    if rank == 0:
        print(f"median ratio {statistics.median(ratios):.3f} over {rounds} rounds")
    dist.destroy_process_group()


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]] + [2, 7, 30][len(sys.argv) - 1 :]
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(free_port()))
    mp.spawn(worker, args=tuple(numbers), nprocs=numbers[0])
