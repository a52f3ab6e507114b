"""Train the decoder of transformer.py on the bytes of text files, by a loop of one's own.

    python train.py [FILE ...]

Without files on those of Python's asyncio. The last 5 % of the bytes are held out.
"""

import argparse
import asyncio
from math import log
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from transformer import build


def windows(text: bytes, length: int) -> TensorDataset:
    """Windows of bytes that follow one another, and of each byte the next one."""
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    count = (len(tokens) - 1) // length * length
    return TensorDataset(tokens[:count].view(-1, length), tokens[1 : count + 1].view(-1, length))


def loss_of(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of a byte, in nats."""
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate(model: torch.nn.Module, loader: DataLoader) -> float:
    """Bits a byte."""
    model.eval()
    sums = sum(loss_of(model, inputs, targets).item() * len(inputs) for inputs, targets in loader)
    return sums / len(loader.dataset) / log(2)


def main() -> None:
    own = sorted(Path(asyncio.__file__).parent.glob("*.py"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=own)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=6)
    args = parser.parse_args()

    text = b"".join(path.read_bytes() for path in args.files)
    cut = len(text) * 19 // 20
    loader = DataLoader(windows(text[:cut], args.window), batch_size=16, shuffle=True)
    held_out = DataLoader(windows(text[cut:], args.window), batch_size=16)
    torch.manual_seed(1)
    model = build((args.window,), 256, args.width, args.depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)

    def train() -> None:
        for _ in range(args.epochs):
            model.train()
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss = loss_of(model, inputs, targets)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            schedule.step()
            print(f"train loss {loss.item():.3f}")

    train()
    print(f"held out: {evaluate(model, held_out):.3f} bits a byte")


if __name__ == "__main__":
    main()
