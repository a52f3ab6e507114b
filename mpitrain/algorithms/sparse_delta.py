"""Peers that exchange sparse deltas of 1 bit or a few, or unquantised."""

import warnings
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from mpitrain.algorithms.interface import Algorithm
from mpitrain.algorithms.optimizers import Buffers
from mpitrain.compression.thresholds import integer_step, round_threshold, round_weights
from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.keys import Fraction, Handful, NotNegative, Number, Positive
from mpitrain.sampling.stages import Settings


class SparseDelta(Algorithm, frozen=True, tag_field="name", tag="sparse-delta"):
    """Peers that send each other single thresholded gradient elements (Strom 2015)."""

    protocol = "peers"
    replicated = True
    workers_change = True
    in_teams = True
    sparse = True
    loop_instead = "not there yet; block-momentum sends as little"
    training: ClassVar = {"learning_rate": 0.05, "minibatch": 8}
    presets: ClassVar = {"": {}, "strom2015": {"threshold": 4.0}}
    # Table 1 and §3.3, except for the number of ranks; 166 of 1000 hours are a sixth of an epoch. That the rate is
    # one of means, and not of sums, is ours (docs/measured.md).
    recipes: ClassVar = {
        "strom2015": {
            "training": {"epochs": 10.0, "minibatch": 256, "learning_rate": 0.008},
            "pretraining": {"method": "layerwise"},
            "stages": [
                {"at": 0.166, "minibatch": 512},
                {"at": 1.0, "minibatch": 1024, "rate_factor": 0.5},
                *[{"at": float(epoch), "rate_factor": 0.5} for epoch in range(2, 10)],
            ],
        }
    }
    preset: Literal["", "strom2015"] = ""  # a paper's values, with its stages
    threshold: Positive = 1.0  # what the residual of summed gradients must exceed; with target_density, at first
    bits: Literal[1, 2, 4, 32] = 1  # of a sent value: ±1 to ±2^(bits − 1) thresholds; 32: the residual, unquantised
    codec: Literal["packed", "golomb-rice", "auto"] = "packed"  # code of indices; auto: Golomb–Rice while sparse
    target_density: Fraction = 0.0  # share of elements to send, to which the threshold is adapted; 0: fixed threshold
    clip: NotNegative = 0.0  # bound on the residual in multiples of the threshold; 0: none
    window: Handful = 4  # most messages in transit to a peer
    patience: Number = 2  # minibatches that are trained on while a peer's window is full
    synchronous: bool = False  # every rank waits for every minibatch's messages
    order: Literal["free", "round-robin"] = "free"  # `"round-robin"`: synchronous, messages applied by rank
    check_every: NotNegative = 10.0  # seconds between checks of the replica; 0: none

    def check_with(self, exchange: str, rate_per: str, settings: Sequence[Settings]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for each in settings:
                try:
                    integer_step(
                        self.rate(rate_per, each.learning_rate, each.minibatch), round_threshold(self.threshold)
                    )
                except BadInput as error:
                    raise BadInput(f"algorithm.threshold: {error}") from None

    @staticmethod
    def rate(per: str, learning_rate: float, minibatch: int) -> float:
        """η per sample, where training.rate_per is `per`."""
        return learning_rate if per == "sample" else learning_rate / minibatch

    @property
    def density(self) -> float:
        return self.target_density

    def workers(self, ranks: int) -> int:
        return ranks

    def beside(self, theta: Array) -> Buffers:
        """The weights as integer multiples of UNIT. Rounds θ to these multiples, in place."""
        counts = np.empty_like(theta, dtype=np.int32)
        round_weights(theta, counts)
        return {"counts": counts}

    def own(self, theta: Array) -> Buffers:
        """The gradient that has not been sent yet."""
        return {"residual": np.zeros_like(theta)}
