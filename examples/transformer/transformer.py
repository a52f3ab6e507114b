"""A decoder-only transformer on tokens: each token's output predicts the next one."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each behind a normalisation and beside a short cut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.joined = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, window, width = x.shape
        q, k, v = (
            part.view(n, window, self.heads, -1).transpose(1, 2) for part in self.attend(self.before(x)).split(width, 2)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.joined(seen.transpose(1, 2).reshape(n, window, width))
        return x + self.feed(self.between(x))


class Transformer(nn.Module):
    """Tokens [n, window] in, outputs [n, window, classes]; the embedding is the output layer, too. With `near` above 0
    a convolution comes first, which sees `near` tokens: this one and those before it."""

    def __init__(self, window: int, classes: int, width: int, depth: int, heads: int, near: int, std: float) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(classes, width), nn.Embedding(window, width)
        self.near = nn.Conv1d(width, width, near) if near else None
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.last, self.out = nn.LayerNorm(width), nn.Linear(width, classes, bias=False)
        self.out.weight = self.tokens.weight
        for name, p in self.named_parameters():
            if p.dim() > 1:
                deep = name.endswith(("joined.weight", "feed.2.weight"))  # what the short cuts add up
                nn.init.normal_(p, std=std / (2 * depth) ** 0.5 if deep else std)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        if self.near is not None:
            before = functional.pad(x.transpose(1, 2), (self.near.kernel_size[0] - 1, 0))
            x = x + functional.gelu(self.near(before)).transpose(1, 2)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.out(self.last(self.blocks(x + self.places(places))))


def build(
    input_shape: tuple[int, ...],
    classes: int,
    width: int = 128,
    depth: int = 6,
    heads: int = 4,
    near: int = 0,
    std: float = 0.02,
) -> nn.Module:
    """For windows of `input_shape[0]` tokens. Weights begin with the standard deviation `std`."""
    return Transformer(input_shape[0], classes, width, depth, heads, near, std)
