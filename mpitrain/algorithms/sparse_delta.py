"""Peers that exchange sparse deltas of 1 bit or a few, or unquantised."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from mpitrain.algorithms.interface import Algorithm
from mpitrain.algorithms.optimizers import Buffers
from mpitrain.algorithms.space import COMMON, MOMENTA, Between, Choice
from mpitrain.compression.thresholds import integer_step, round_threshold, round_weights
from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.keys import AmountOrNone, Count, Fraction, Handful, NotNegative, Number, Positive, Share
from mpitrain.sampling.stages import Settings

#: The share of elements that the warm-up of the density begins with.
FIRST_DENSITY = 0.25


class SparseDelta(Algorithm, frozen=True, tag_field="name", tag="sparse-delta"):
    """Peers that send each other single thresholded gradient elements (Strom 2015)."""

    protocol = "peers"
    replicated = True
    workers_change = True
    in_teams = True
    sparse = True
    loop_keys = ("threshold", "bits", "codec", "target_density", "clip", "window", "synchronous")
    # There the residual sums the user's increments in place of gradients, with a learning rate of 1.
    loop_defaults: ClassVar = {
        "algorithm": {"threshold": 0.01, "target_density": 0.002},
        "training": {"minibatch": 1, "learning_rate": 1.0},
    }
    training: ClassVar = {"learning_rate": 0.05, "minibatch": 8}
    space: ClassVar = {
        **COMMON,
        "target_density": Between(0.001, 0.1),
        "momentum": MOMENTA,
        "bits": Choice((1, 2)),
        "run.team": Choice((1, "node")),
    }
    presets: ClassVar = {
        "": {},
        "strom2015": {"threshold": 4.0},
        "many-peers": {"combine": "mean", "top_k": 64, "bits": 2, "codec": "auto"},
    }
    # "many-peers": settings with which 16 and 32 peers learn the digits (docs/measured.md). "strom2015": Table 1 and
    # §3.3, except for the number of ranks; 166 of 1000 hours are a sixth of an epoch. We apply its learning rate to
    # means of gradients, not to sums (docs/measured.md).
    recipes: ClassVar = {
        "many-peers": {"training": {"minibatch": 1, "learning_rate": 0.2}},
        "strom2015": {
            "training": {"epochs": 10.0, "minibatch": 256, "learning_rate": 0.008},
            "pretraining": {"method": "layerwise"},
            "stages": [
                {"at": 0.166, "minibatch": 512},
                {"at": 1.0, "minibatch": 1024, "rate_factor": 0.5},
                *[{"at": float(epoch), "rate_factor": 0.5} for epoch in range(2, 10)],
            ],
        },
    }
    preset: Literal["", "strom2015", "many-peers"] = ""
    """`"strom2015"`: the paper's values, pre-training and stages; `"many-peers"`: for 16 peers and more."""
    threshold: Positive = 1.0  # what the residual of summed gradients must exceed; with target_density, at first
    bits: Literal[1, 2, 4, 32] = 1  # of a sent value: ±1 to ±2^(bits − 1) thresholds; 32: the residual, unquantised
    codec: Literal["packed", "golomb-rice", "auto"] = "packed"  # code of indices; auto: Golomb–Rice while sparse
    target_density: Fraction = 0.0  # share of elements to send, to which the threshold is adapted; 0: fixed threshold
    clip: NotNegative = 0.0  # bound on the residual in multiples of the threshold; 0: none
    tau: Count = 1  # local steps from Θ; their change, divided by the learning rate, goes into the residual
    combine: Literal["sum", "mean"] = "sum"  # whether all that peers send is added, or divided by their number
    top_k: Number = 0  # entries sent of each chunk of the residual; 0: what exceeds the threshold
    chunk: Count = 4096  # elements of a chunk, neighbours in a tensor
    error_decay: Share = 1.0  # β: share of the residual kept until the next turn (SparseLoCo's error feedback)
    momentum: Fraction = 0.0  # μ of the gradients before they go into the residual (Deep Gradient Compression)
    density_warmup: AmountOrNone = 0.0  # epochs in which the density falls from a quarter to target_density
    window: Handful = 4  # most messages in transit to a peer
    patience: Number = 2  # minibatches that are trained on while a peer's window is full
    synchronous: bool = False  # every rank waits for every minibatch's messages
    order: Literal["free", "round-robin"] = "free"  # `"round-robin"`: synchronous, messages applied by rank
    check_every: NotNegative = 10.0  # seconds between checks of the replica; 0: none

    def check(self) -> None:
        if self.tau > 1 and self.momentum:
            raise BadInput("algorithm.momentum: corrects gradients, of which a turn has one: tau = 1")
        if self.top_k and (self.target_density or self.clip):
            key = "target_density" if self.target_density else "clip"
            raise BadInput(f"algorithm.{key}: belongs to thresholds, and top_k sends the largest entries instead")
        if self.density_warmup and not self.target_density:
            raise BadInput("algorithm.density_warmup: leads to target_density, which is not given")

    def check_with(self, exchange: str, rate_per: str, settings: Sequence[Settings]) -> None:
        for each in settings:
            try:
                integer_step(self.rate(rate_per, each.learning_rate, each.minibatch), round_threshold(self.threshold))
            except BadInput as error:
                raise BadInput(f"algorithm.threshold: {error}") from None

    @staticmethod
    def rate(per: str, learning_rate: float, minibatch: int) -> float:
        """η per sample, where training.rate_per is `per`."""
        return learning_rate if per == "sample" else learning_rate / minibatch

    @property
    def density(self) -> float:
        return min(self.top_k / self.chunk, 1.0) if self.top_k else self.target_density

    def density_at(self, epoch: float) -> float:
        """The target this many epochs after the start (Lin et al. 2018, §3.3, which has steps of an epoch)."""
        done = min(epoch / self.density_warmup, 1.0) if self.density_warmup else 1.0
        return float(FIRST_DENSITY * (self.target_density / FIRST_DENSITY) ** done)

    def workers(self, ranks: int) -> int:
        return ranks

    def beside(self, theta: Array) -> Buffers:
        """The weights as integer multiples of UNIT. Rounds θ to these multiples, in place."""
        counts = np.empty_like(theta, dtype=np.int32)
        round_weights(theta, counts)
        return {"counts": counts}

    def own(self, theta: Array) -> Buffers:
        """The gradient that has not been sent yet, and with momentum its velocity."""
        names = ("residual", "velocity") if self.momentum else ("residual",)
        return {name: np.zeros_like(theta) for name in names}
