"""`sparse-delta` around AdamW on noise: print which share of the elements a message has on average, once it is settled.

Argument: the target.
"""

import sys

import torch

import mpitrain
from mpitrain.protocols.peers.deltas import Deltas

BATCHES, SETTLING, SIZE = 400, 150, 20_000
sent: list[int] = []
send = Deltas.send


def counting(deltas: Deltas, entries: object, *rest: object) -> int:
    sent.append(entries.words.size)
    return send(deltas, entries, *rest)


Deltas.send = counting
torch.manual_seed(2)
model = torch.nn.Linear(SIZE, 1, bias=False)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
target = float(sys.argv[1])
with mpitrain.distribute(model, optimizer, "sparse-delta", synchronous=True, target_density=target) as ranks:
    for _ in ranks.share(range(BATCHES * ranks.size)):
        optimizer.zero_grad()
        model(torch.randn(SIZE)).backward()
        optimizer.step()
if ranks.is_first:
    print(f"share: {sum(sent[SETTLING:]) / (BATCHES - SETTLING) / SIZE}")
