"""`sparse-delta`: two ranks' moves that fit each alone leave ±32 together, which the thread finds that calls MPI while
the user's code runs."""

import threading
import time

import torch

import mpitrain
from mpitrain.mpi import MPI
from mpitrain.protocols.peers.deltas import Deltas

receive, send = Deltas.receive, Deltas.send


def receiving(deltas: Deltas) -> bool:
    return threading.current_thread() is not threading.main_thread() and receive(deltas)


def sending(deltas: Deltas, *entries: object) -> int:
    MPI.COMM_WORLD.Barrier()
    return send(deltas, *entries)


Deltas.receive, Deltas.send = receiving, sending
model = torch.nn.Linear(100, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), 1.0)
with mpitrain.distribute(model, optimizer, "sparse-delta", threshold=20.0, target_density=0) as ranks:
    for _ in ranks.share(range(ranks.size)):
        optimizer.zero_grad()
        (-21 * model.weight.sum()).backward()
        optimizer.step()
    time.sleep(0.5)
