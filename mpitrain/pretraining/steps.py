"""The parts that both methods of pre-training share: minibatches of a part of the corpus, and progress."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mpitrain.config import Pretraining
from mpitrain.data.batch import Samples
from mpitrain.data.prefetch import DEADLINE
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.models.model import Model
from mpitrain.rng import stream
from mpitrain.sampling.queue import Queue, Work
from mpitrain.training.gradients import Learner


class Step(NamedTuple):
    """A completed minibatch in pre-training hidden layer `layer` (from 1) of `layers`, with its mean loss."""

    layer: int
    layers: int
    samples: int
    loss: float


def learner_of(
    network: Model,
    corpus: Samples,
    seed: int,
    layer: int,
    dtype: np.dtype,
    device: Cpu = CPU,
    deadline: float = DEADLINE,
) -> Learner:
    """A learner whose order of minibatches is specific to the layer."""
    own = int(stream(seed, "pretraining", layer).integers(2**31))
    return Learner(network, corpus, seed=own, dtype=str(dtype), device=device, deadline=deadline)


def minibatches(options: Pretraining, samples: int) -> Iterator[Work]:
    """The minibatches of `options.epochs` epochs."""
    queue = Queue(samples, round(options.epochs * samples))
    while (work := queue.next(options.minibatch)) is not None:
        yield work
