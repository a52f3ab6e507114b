"""Batch normalisation of one batch a rank: print the running mean and variance after the block."""

import torch
from torch import nn
from torch.utils.data import DataLoader

import mpitrain

model = nn.BatchNorm1d(1, momentum=0.5)
optimizer = torch.optim.SGD(model.parameters(), 0.0)
samples = torch.tensor([[0.0], [2.0], [10.0], [14.0]])
with mpitrain.distribute(model, optimizer, "allreduce") as ranks:
    for batch in ranks.share(DataLoader(samples, batch_size=2)):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
told = (model.running_mean, model.running_var, model.num_batches_tracked)
print(f"statistics: {' '.join(str(each.item()) for each in told)}\n", end="")
