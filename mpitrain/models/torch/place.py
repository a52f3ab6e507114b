"""Where a module of PyTorch's computes, and how its tensors share memory with the arrays of the rest of the program."""

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import SupportsFloat

import numpy as np
import torch

from mpitrain.flat import Array
from mpitrain.models.torch import state as torch_state

Hook = Callable[[], None]


class CpuPlace:
    """The CPU: arrays are NumPy's. device/gpu_place.py has the same interface for a GPU."""

    device = torch.device("cpu")  #: where the module's parameters and constants lie

    def computing(self) -> AbstractContextManager[object]:
        """Within this context PyTorch computes in order with what else is computed on the arrays."""
        return nullcontext()

    def put(self, array: Array) -> Array:
        """The NumPy array as one of this place: a copy, unless it is one already."""
        return array

    def tensor(self, array: Array) -> torch.Tensor:
        """A tensor in the memory of an array of this place."""
        return torch.from_numpy(array)

    def array(self, tensor: torch.Tensor) -> Array:
        """An array of this place in the memory of a tensor that needs no gradient."""
        return tensor.numpy()

    def copied(self, tensor: torch.Tensor) -> Array:
        """A copy of a tensor in host memory."""
        return torch_state.numbers(tensor).copy()

    def number(self, tensor: torch.Tensor) -> SupportsFloat:
        """A tensor of one element as a number, or as an array that waits only when it is asked for its value."""
        return tensor.item()

    def hook(self, report: Hook) -> Callable[[torch.Tensor], None]:
        """What autograd calls when a gradient is final, for `report` to look after it."""
        return lambda parameter: report()

    def seed(self, keys: Sequence[int]) -> None:
        """Seed what a module may draw from: PyTorch's generator, NumPy's old one and Python's, with 32 bits each."""
        for_torch, for_numpy, for_python = keys
        torch.default_generator.manual_seed(for_torch)
        np.random.seed(for_numpy)  # noqa: NPY002
        random.seed(for_python)

    def bf16(self) -> AbstractContextManager[object]:
        """Within this context matrix products are of bfloat16."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16)


HOST = CpuPlace()
