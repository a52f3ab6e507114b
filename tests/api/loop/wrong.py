"""A loop with one fault. Arguments: its name, and the algorithms that are used one after the other."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

import mpitrain
from mpitrain.mpi import MPI
from mpitrain.mpi.process import PROCESS

PROCESS.start()
case, *algorithms = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(3)
here = MPI.COMM_WORLD.rank == 1  # the fault is on this rank alone
MPI.COMM_WORLD.Barrier()  # no deadline is for who loads PyTorch last
inputs = torch.randn(200, 8)
targets = inputs[:, :3].argmax(1)
model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 3))
if case == "unfrozen":
    model[0].requires_grad_(False)
if case == "another model" and here:
    model = nn.Sequential(nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
loss = nn.CrossEntropyLoss()


def generated() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches without a length; on one rank there are more."""
    for k in range(12 if here and case == "more batches" else 6):
        yield inputs[8 * k : 8 * k + 8], targets[8 * k : 8 * k + 8]


def meet(k: int, ranks: Any) -> None:
    """The fault, at batch k."""
    if k == 4 and case == "exit together":
        sys.exit(3)
    if not here or k != 4:
        return
    match case:
        case "exception":
            raise KeyError("mine")
        case "exit":
            sys.exit(3)
        case "moved":
            model.double().float()
        case "unfrozen":
            model[0].bias.requires_grad_(True)
        case "learning rate":
            optimizer.param_groups[0]["lr"] = 0.02
        case "noise":
            torch.nn.init.normal_(model[0].weight)
        case "silence" if ranks.epoch == 0:
            time.sleep(5)
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "mean":
            ranks.mean(1.0)
        case "save":
            ranks.save("alone")


deadline = 2.0 if case in ("silence", "stopped", "mean", "save") else 60.0
for algorithm in algorithms:
    keys = {"allreduce": {}, "sparse-delta": {"synchronous": case == "break"}}.get(algorithm, {"tau": 3})
    if case == "learning rate":
        keys |= {"block-momentum": {"preset": "slowmo"}, "easgd-sync": {"rho": 1.0}}.get(algorithm, {})
    if case == "another seed":
        keys["seed"] = 5 + here
    with mpitrain.distribute(model, optimizer, algorithm, deadline=deadline, **keys) as ranks:
        data = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True)
        if case.startswith("other"):  # as unseeded programs draw them
            order = random_split(range(200), [160, 40], torch.Generator().manual_seed(ranks.rank))[0]
            part = Subset(data.dataset, list(order))
            data = DataLoader(part, batch_size=8) if case == "other part" else list(DataLoader(part, batch_size=8))
        match case:
            case "load" if here:
                ranks.load("together")
            case "save apart":
                ranks.save(f"rank-{ranks.rank}")
            case "load":
                ranks.save("together")
        for epoch in range(2):
            for k, (x, y) in enumerate(ranks.share(generated() if case == "more batches" else data)):
                meet(k, ranks)
                if here and ((case == "break" and k == 4) or (case == "break late" and (epoch, k) == (1, 11))):
                    break
                optimizer.zero_grad()
                out = loss(model(x), y)
                if case == "unsummed":
                    for p, g in zip(model.parameters(), torch.autograd.grad(out, [*model.parameters()]), strict=True):
                        p.grad = g
                if case == "added up":
                    with ranks.accumulate():
                        out.backward()
                if case == "nan" and here and k == 4:
                    out = out * float("nan")
                if case == "failed backward" and here and k == 4:
                    model[0].weight.register_hook(lambda g: 1 / 0)
                    with suppress(ZeroDivisionError):
                        out.backward()
                    continue
                if case not in ("unsummed", "added up") and not (case == "no backward" and here and k == 4):
                    out.backward()
                if case == "further backward" and here and (epoch, k) == (1, 12):  # of the last batch
                    loss(model(x), y).backward()
                optimizer.step()
    print(
        f"{algorithm}, rank {ranks.rank}: {sum(float((p.detach() ** 2).sum()) for p in model.parameters()):.9g}\n",
        end="",
        flush=True,
    )
