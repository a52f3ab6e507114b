"""The base class of algorithms whose learning rate can fall when the training stagnates."""

from mpitrain.algorithms.table import Algorithm
from mpitrain.keys import Number
from mpitrain.schedules.common_rate import CommonRate


class Slowing(Algorithm, frozen=True):
    """One decision for all ranks, from the loss of all."""

    plateau: Number = 0
    """Above 0, η is divided by 5, then by 2, for all ranks, when their common loss over windows of so many minibatches
    stagnates."""

    def common_rate(self) -> CommonRate:
        return CommonRate(self.plateau)
