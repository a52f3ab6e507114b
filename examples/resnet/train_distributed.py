"""Train the network of resnet.py to tell gratings in noise by their angle, by a loop of one's own.

python train.py
"""

import argparse
from math import pi

import torch
from resnet import build
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mpitrain

CLASSES, SIZE = 8, 16


def gratings(count: int, seed: int) -> TensorDataset:
    """Images [3, SIZE, SIZE] of waves along one of CLASSES directions, under noise."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=draw)
    angle, phase = labels.view(-1, 1, 1) * (pi / CLASSES), 2 * pi * torch.rand(count, 1, 1, generator=draw)
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    waves = torch.sin(0.8 * (x * angle.cos() + y * angle.sin()) + phase)
    return TensorDataset(waves[:, None] + 3 * torch.randn(count, 3, SIZE, SIZE, generator=draw), labels)


def train_one_epoch(
    model: nn.Module, criterion: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader
) -> None:
    model.train()
    for images, labels in loader:
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.inference_mode()
def evaluate(model: nn.Module, loader: DataLoader) -> float:
    """The share of wrong classes."""
    model.eval()
    wrong = sum((model(images).argmax(1) != labels).sum().item() for images, labels in loader)
    return wrong / len(loader.dataset)


def main(args: argparse.Namespace) -> None:
    loader = DataLoader(gratings(args.samples, 1), batch_size=args.batch_size, shuffle=True, drop_last=True)
    test_loader = DataLoader(gratings(500, 2), batch_size=100)
    model = build((3, SIZE, SIZE), CLASSES, args.width)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=1)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(args.epochs - 1, 1))
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[1])

    def train() -> None:
        for _ in range(args.epochs):
            train_one_epoch(model, criterion, optimizer, ranks.share(loader))
            scheduler.step()
            ranks.log(test_error=evaluate(model, test_loader))

    with mpitrain.distribute(model, optimizer, algorithm="allreduce") as ranks:
        train()
    torch.save({"model": model.state_dict(), "args": vars(args)}, args.output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--output", default="model.pt")
    main(parser.parse_args())
