"""Gradients summed over the ranks, compared with those that one process computes of all samples."""

import copy
from contextlib import nullcontext

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mpitrain
from mpitrain.flat import share

torch.set_num_threads(1)
torch.manual_seed(3)
inputs, targets = torch.randn(50, 6, dtype=torch.float64), torch.randn(50, 2, dtype=torch.float64)
mean = nn.MSELoss()


class Chooses(nn.Module):
    """A network one of whose layers is used on the last rank only, and one nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.here, self.last, self.never = (nn.Linear(n, m) for n, m in ((6, 5), (5, 5), (5, 2), (2, 2)))

    def forward(self, x: torch.Tensor, here: bool) -> torch.Tensor:
        h = self.first(x).tanh()
        return self.last(h + self.here(h) if here else h)


def require(model: Chooses, of: Chooses) -> None:
    for (name, p), q in zip(model.named_parameters(), of.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, msg=lambda text, name=name: f"{name}: {text}")


model = Chooses().double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with mpitrain.distribute(model, optimizer, "allreduce", bucket_mb=0.0001) as ranks:
    size = ranks.size
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=8)
    for number, (x, y) in enumerate(ranks.share(loader)):
        optimizer.zero_grad()
        alone = copy.deepcopy(model)
        first = number * 8 * size
        together = inputs[first : first + 8 * size], targets[first : first + 8 * size]
        count = len(together[0])
        for rank in range(size):  # two samples are left for the last round, of which the last rank has both
            own = share(count, rank, size) if count > 2 else slice(0, 2 if rank == size - 1 else 0)
            a, b = (t[own] for t in together)
            assert rank != ranks.rank or (bool(ranks.weight) == (len(a) > 0) and (not len(a) or a.equal(x)))
            if len(a):
                (mean(alone(a, rank == size - 1), b) * (len(a) / count)).backward()
        mean(model(x, ranks.rank == size - 1), y).backward()
        require(model, alone)
        optimizer.step()  # of the rank that has no sample in the last round, too
        torch.optim.SGD(alone.parameters(), lr=0.1).step()
        for p, q in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(p, q)

    # all batches to a step, the last ones of other lengths: the sum of the means
    optimizer.zero_grad()
    alone = copy.deepcopy(model)
    rounds = list(zip(inputs.split(8 * size), targets.split(8 * size), strict=True))
    for number, (x, y) in enumerate(ranks.share(loader), 1):
        with nullcontext() if number == len(rounds) else ranks.accumulate():
            mean(model(x, True), y).backward()
    for a, b in rounds:
        mean(alone(a, True), b).backward()
    require(model, alone)
    # batches of other lengths on each rank, of which one rank's is as long as they are on average
    optimizer.zero_grad()
    alone = copy.deepcopy(model)
    batches = list(zip(inputs.split([2, 4, 6, 38]), targets.split([2, 4, 6, 38]), strict=True))[:size]
    for x, y in ranks.share(batches):
        mean(model(x, True), y).backward()
    for a, b in batches:
        (mean(alone(a, True), b) * (len(a) / sum(len(each) for each, _ in batches))).backward()
    require(model, alone)
print(f"rank {ranks.rank} of {size}: as alone\n", end="", flush=True)
