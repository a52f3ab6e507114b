"""A table that `forward` enlarges, to other lengths on two ranks: print its length and the weight after the block."""

import torch
from torch import nn

import mpitrain


class Network(nn.Linear):
    """Also with a mask that only long sequences need."""

    def __init__(self) -> None:
        super().__init__(1, 1, bias=False)
        nn.init.zeros_(self.weight)
        self.register_buffer("table", torch.ones(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > len(self.table):
            self.table = torch.ones(len(x))
        if len(x) > 4:
            self.register_buffer("mask", torch.ones(()), persistent=False)
        return super().forward(x)[:, 0] @ self.table[: len(x)]


model = Network()
optimizer = torch.optim.SGD(model.parameters(), 1.0)
with mpitrain.distribute(model, optimizer, "allreduce") as ranks:
    for batch in ranks.share([torch.full((length, 1), 1 / length) for length in (3, 5)]):
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()
    ranks.save("kept")
print(f"rank {ranks.rank}: {len(model.table)} {model.weight.item()}\n", end="")
