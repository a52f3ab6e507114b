"""Small PyTorch modules for tests; none where PyTorch is missing."""

from collections.abc import Callable
from importlib.util import find_spec

from mpitrain.models.model import Model

TORCH_MODELS: dict[str, Callable[[], Model]] = {}
WHY = "needs PyTorch (the extra mpitrain[torch])"

if find_spec("torch"):
    import torch
    from torch import nn
    from torch.nn import functional

    from mpitrain.models.torch.module import TorchModel

    torch.set_num_threads(1)

    class Residual(nn.Module):
        """A small ResNet with batch normalisation, on images of one channel."""

        def __init__(self, classes: int, width: int = 4) -> None:
            super().__init__()
            self.first = nn.Conv2d(1, width, 3, padding=1, bias=False)
            self.norms = nn.ModuleList([nn.BatchNorm2d(width) for _ in range(3)])
            self.convolutions = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2)])
            self.last = nn.Linear(width * 4, classes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = functional.relu(self.norms[0](self.first(x)))
            y = functional.relu(self.norms[1](self.convolutions[0](x)))
            x = functional.relu(x + self.norms[2](self.convolutions[1](y)))
            return self.last(functional.adaptive_avg_pool2d(x, 2).flatten(1))

    class Tied(nn.Module):
        """An MLP with one matrix in two layers, a parameter that is never used and one that is frozen."""

        def __init__(self, inputs: int, classes: int, dropout: float = 0.0) -> None:
            super().__init__()
            self.first, self.middle, self.again = nn.Linear(inputs, 8), nn.Linear(8, 8), nn.Linear(8, 8)
            self.again.weight = self.middle.weight
            self.unused = nn.Parameter(torch.ones(3, 2))
            self.frozen = nn.Parameter(torch.randn(8), requires_grad=False)
            self.dropout, self.last = nn.Dropout(dropout), nn.Linear(8, classes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.tanh(self.first(x.flatten(1)) + self.frozen)
            return self.last(self.dropout(torch.tanh(self.again(torch.tanh(self.middle(x))))))

    TORCH_MODELS = {
        "torch-images": lambda: TorchModel(lambda seed: Residual(7), (8, 8, 1), 7),
        "torch-frames": lambda: TorchModel(lambda seed: Tied(20, 7), (4, 5), 7, output="logistic"),
    }
