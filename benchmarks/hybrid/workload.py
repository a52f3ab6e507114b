"""The network and data of the hybrid benchmarks: krizhevsky2014 at half width on random images of 67 x 67."""

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

CLASSES = 1000


class RandomImages:
    """A corpus of standard normal images with random targets, the same few over and over."""

    classes, in_memory = CLASSES, True

    def __init__(self, samples: int, side: int) -> None:
        rng = np.random.default_rng(1)
        self.samples, self.shape = samples, (side, side, 3)
        self.form = SampleForm(self.shape)
        self._inputs = rng.standard_normal((64, *self.shape), dtype=np.float32)
        self._targets = rng.integers(CLASSES, size=64).astype(np.int32)

    def gather(self, indices: Array, out: Batch, place: tuple[int, int] | None = None) -> Batch:
        """Copy the samples into `out`."""
        np.take(self._inputs, indices % 64, axis=0, out=out.inputs, mode="clip")
        np.take(self._targets, indices % 64, out=out.targets, mode="clip")
        return out


def network(side: int, width: float) -> Network:
    """Krizhevsky's single tower, narrower, with softmax outputs."""
    return build("krizhevsky2014", (side, side, 3), CLASSES, width=width, output="softmax")


def session(transport: Transport, net: Network, minibatch: int, minibatches: int, *settings: str) -> Session:
    """A training of `minibatches` minibatches of `minibatch` a rank, without files or evaluation."""
    samples = minibatch * minibatches * transport.size
    base = [f"training.minibatch={minibatch}", "training.epochs=1", "training.learning_rate=0.001"]
    config = configuration.load(None, [*base, "run.evaluate_every=0", *settings])
    corpus = RandomImages(samples, net.input_shape[0])
    schedule = config.schedule(samples)
    state = fresh(config.algorithm, net.initial(1), Queue(samples, schedule.total))
    learner = Learner(net, corpus, configuration.Training())
    members = list(range(transport.size))
    return Session(config, transport, members, net, learner, schedule, state, time.monotonic)
