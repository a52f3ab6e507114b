"""A training by the trainer, and the same by a loop of one's own: print the hashes of both models. Arguments: names of
algorithms, each with the network, "perceptron" or "transformer", and its keys as JSON."""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import mpitrain
from mpitrain.data.corpus import Corpus
from mpitrain.data.digits import embedded
from mpitrain.data.shards import document_arrays, write_shard
from mpitrain.flat import parameters_sha256
from mpitrain.models.torch.module import TorchModel


class Descent(torch.optim.Optimizer):
    """SGD in the trainer's roundings: −ηg first, which PyTorch's fuses with the addition."""

    def __init__(self, parameters: object, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad * -group["lr"])


def perceptron(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Large enough for several sums of a gradient."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 10)
    )


def transformer(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """That of the examples, small; the embedding is the output layer, too."""
    sys.path.append(str(Path(__file__).parents[3] / "examples" / "transformer"))
    from transformer import build

    module: nn.Module = build(input_shape, classes, width=32, depth=2, heads=2)
    return module


def digits() -> tuple[dict[str, object], Corpus]:
    """The embedded digits."""
    return {}, Corpus(embedded(), "train")


def text() -> tuple[dict[str, object], Corpus]:
    """The numbers from 0 to 999 in digits, and their windows of 16 bytes."""
    shards = Path("shards")
    if MPI.COMM_WORLD.rank == 0 and not shards.exists():
        spelt = np.frombuffer(" ".join(map(str, range(1000))).encode(), np.uint8).astype(np.uint16)
        for part in ("train", "test"):
            write_shard(shards / f"{part}-00000-of-00001.h5", "tokens", document_arrays([spelt]), {"classes": 256})
    MPI.COMM_WORLD.Barrier()
    return {"path": str(shards), "window": 16}, Corpus(shards, "train", window=16)


def whole(corpus: Corpus) -> TensorDataset:
    """All samples of a corpus, in its order, as the trainer's modules get them."""
    batch = corpus.gather(np.arange(corpus.samples), corpus.form.room(corpus.samples, np.float32))
    inputs = torch.from_numpy(batch.inputs)
    inputs = inputs.permute(0, 3, 1, 2) if corpus.form.pixels else inputs.long()
    return TensorDataset(inputs, torch.from_numpy(batch.targets).long())


NETWORKS = {"perceptron": (perceptron, digits, ((8, 8, 1), 10)), "transformer": (transformer, text, ((16,), 256))}


def main(name: str, network: str, keys: dict[str, object]) -> None:
    build, read, form = NETWORKS[network]
    data, corpus = read()
    training = {"epochs": 2.0, "minibatch": 24, "learning_rate": 0.1, "seed": 5}
    trainer = {**keys, "optimizer": {"name": "sgd"}, "name": name}
    run = {"evaluate_every": 0, "checkpoint_best": False, "device": "cpu"}
    config = {"algorithm": trainer, "training": training, "run": run, "data": data}
    summary = mpitrain.train(config, build)

    module = build(*form)
    model = TorchModel(lambda seed: build(*form), *form, seed=5, form=corpus.form)
    for p, initial in zip(module.parameters(), model.layout.views(model.initial(5)).values(), strict=True):
        p.data.copy_(torch.from_numpy(initial))
    optimizer = Descent(module.parameters(), lr=0.1)
    with mpitrain.distribute(module, optimizer, name, seed=5, **keys) as ranks:
        loader = DataLoader(whole(corpus), batch_size=24, shuffle=True)
        for _ in range(2):
            for inputs, targets in ranks.share(loader):
                optimizer.zero_grad()
                functional.cross_entropy(module(inputs).flatten(0, -2), targets.flatten()).backward()
                optimizer.step()
    vector = nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    if ranks.is_first:
        print(json.dumps([name, network, summary["parameters_sha256"], parameters_sha256(vector), summary["samples"]]))


for name, network, keys in zip(sys.argv[1::3], sys.argv[2::3], sys.argv[3::3], strict=True):
    main(name, network, json.loads(keys))
