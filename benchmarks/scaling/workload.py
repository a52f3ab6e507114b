"""The network and the data of the scaling benchmarks: 5×1024 sigmoid, 340 inputs, 1998 outputs, random frames."""

import time

import numpy as np

from mpitrain import config as configuration
from mpitrain.flat import Array
from mpitrain.models.network import Network, build
from mpitrain.mpi import Transport
from mpitrain.sampling.batch import Batch, SampleForm
from mpitrain.sampling.queue import Queue
from mpitrain.training.context import Session, fresh
from mpitrain.training.gradients import Learner

MINIBATCH, INPUTS, CLASSES = 256, 340, 1998


class RandomFrames:
    """A corpus of standard normal frames with random targets."""

    shape, classes, in_memory = (INPUTS,), CLASSES, True
    form = SampleForm(shape)

    def __init__(self, samples: int) -> None:
        rng = np.random.default_rng(1)
        self.samples = samples
        self._inputs = rng.standard_normal((samples, INPUTS), dtype=np.float32)
        self._targets = rng.integers(CLASSES, size=samples).astype(np.int32)

    def gather(self, indices: Array, out: Batch, place: tuple[int, int] | None = None) -> Batch:
        """Copy the samples into `out`."""
        np.take(self._inputs, indices, axis=0, out=out.inputs, mode="clip")
        np.take(self._targets, indices, out=out.targets, mode="clip")
        return out


def network() -> Network:
    """The network on which speed is measured."""
    return build("zhang2013-dnn", (INPUTS,), CLASSES, width=0.5, hidden_layers=5)


def session(transport: Transport, minibatches: int, *settings: str, members: list[int] | None = None) -> Session:
    """A training of `minibatches` minibatches in all, without files or evaluation."""
    samples = minibatches * MINIBATCH
    base = [
        f"training.minibatch={MINIBATCH}",
        "training.epochs=1",
        "training.learning_rate=0.1",
        "run.evaluate_every=0",
    ]
    config = configuration.load(None, [*base, *settings])
    net, corpus = network(), RandomFrames(samples)
    schedule = config.schedule(samples)
    state = fresh(config.algorithm, net.initial(1), Queue(samples, schedule.total))
    learner = Learner(net, corpus, configuration.Training())
    return Session(
        config,
        transport,
        members or list(range(transport.size)),
        net,
        learner,
        schedule,
        state,
        time.monotonic,
    )
