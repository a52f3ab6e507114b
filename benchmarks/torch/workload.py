"""Random images, and a training on them without files or evaluation."""

import time

import numpy as np
import torch
from modules import CLASSES, MODULES, SHAPE

from mpitrain import config as configuration
from mpitrain.flat import Array
from mpitrain.models.torch.module import TorchModel
from mpitrain.mpi import Transport
from mpitrain.sampling.batch import Batch, SampleForm
from mpitrain.sampling.queue import Queue
from mpitrain.training.context import Session, fresh
from mpitrain.training.gradients import Learner

RATE = 1e-3


class Random:
    """Random images with random targets, as a corpus."""

    part, shape, classes, in_memory = "train", SHAPE, CLASSES, True
    form = SampleForm(shape)

    def __init__(self, samples: int) -> None:
        rng = np.random.default_rng(1)
        self.samples = samples
        self.inputs = rng.standard_normal((samples, *SHAPE), dtype=np.float32)
        self.targets = rng.integers(0, CLASSES, samples).astype(np.int32)

    def gather(self, indices: Array, out: Batch, place: object = None) -> Batch:
        """Copy the samples."""
        np.take(self.inputs, indices, 0, out=out.inputs, mode="clip")
        np.take(self.targets, indices, 0, out=out.targets, mode="clip")
        return out

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs [n, c, h, w] in channels-last memory, and targets."""
        return torch.from_numpy(self.inputs).permute(0, 3, 1, 2), torch.from_numpy(self.targets).long()


def session(transport: Transport, name: str, samples: int, *settings: str) -> Session:
    """A session that trains one of MODULES for one epoch on `samples` random samples."""
    told = ["training.epochs=1", "run.evaluate_every=0", f"training.learning_rate={RATE}", *settings]
    config = configuration.load(None, told)
    corpus, model = Random(samples), TorchModel(lambda seed: MODULES[name](), SHAPE, CLASSES)
    schedule = config.schedule(samples)
    state = fresh(config.algorithm, model.initial(1), Queue(samples, schedule.total))
    learner = Learner(model, corpus, configuration.Training())
    members = list(range(transport.size))
    return Session(config, transport, members, model, learner, schedule, state, time.monotonic)
