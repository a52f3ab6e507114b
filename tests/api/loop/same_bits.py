"""A training by the trainer, and the same by a loop of one's own: print the hashes of both models. Arguments: the names
of algorithms, each with its keys as JSON."""

import json
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mpitrain
from mpitrain.data.corpus import Corpus
from mpitrain.data.digits import embedded
from mpitrain.flat import parameters_sha256
from mpitrain.models.torch_module import TorchModel
from mpitrain.sampling.batch import Batch


class Descent(torch.optim.Optimizer):
    """SGD in the trainer's roundings: −ηg first, which PyTorch's fuses with the addition."""

    def __init__(self, parameters: object, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad * -group["lr"])


def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Large enough for several sums of a gradient."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 10)
    )


def digits() -> TensorDataset:
    """The embedded digits as the trainer's modules get them."""
    corpus = Corpus(embedded(), "train")
    batch = Batch(np.empty((corpus.samples, *corpus.shape), np.float32), np.empty(corpus.samples, np.int32))
    corpus.gather(np.arange(corpus.samples), batch)
    return TensorDataset(torch.from_numpy(batch.inputs).permute(0, 3, 1, 2), torch.from_numpy(batch.targets).long())


def main(name: str, keys: dict[str, object]) -> None:
    training = {"epochs": 2.0, "minibatch": 24, "learning_rate": 0.1, "seed": 5}
    trainer = {**keys, "optimizer": {"name": "sgd"}, "name": name}
    config = {"algorithm": trainer, "training": training, "run": {"evaluate_every": 0, "checkpoint_best": False}}
    summary = mpitrain.train(config, build)

    module = build((8, 8, 1), 10)
    model = TorchModel(lambda seed: build((8, 8, 1), 10), (8, 8, 1), 10, seed=5)
    for p, initial in zip(module.parameters(), model.layout.views(model.initial(5)).values(), strict=True):
        p.data.copy_(torch.from_numpy(initial))
    optimizer, loss = Descent(module.parameters(), lr=0.1), nn.CrossEntropyLoss()
    with mpitrain.distribute(module, optimizer, name, seed=5, **keys) as ranks:
        loader = DataLoader(digits(), batch_size=24, shuffle=True)
        for _ in range(2):
            for inputs, targets in ranks.share(loader):
                optimizer.zero_grad()
                loss(module(inputs), targets).backward()
                optimizer.step()
    vector = nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    if ranks.is_first:
        print(json.dumps([name, summary["parameters_sha256"], parameters_sha256(vector), summary["samples"]]))


for name, keys in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
    main(name, json.loads(keys))
