"""Supervised layer-by-layer pre-training (Seide, Li, Chen & Yu, Feature engineering in context-dependent deep neural
networks, ASRU 2011; Strom 2015, §3.3).

A network with one hidden layer is trained briefly by back-propagation; its output layer is replaced by the next hidden
layer and a new output layer, and the whole is trained again; and so on up to the full depth.
"""

from collections.abc import Iterator

import numpy as np

from mpitrain.batch import Samples
from mpitrain.config import Pretraining
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.errors import TrainingFailed
from mpitrain.flat import Array
from mpitrain.models.network import Network
from mpitrain.optimizers.sgd import sgd
from mpitrain.start import DEADLINE
from mpitrain.training.pretraining.steps import PretrainingStep, depth, grown, kept, learner_of, minibatches


def fits(network: Network) -> str:
    """Why this method cannot pre-train the network; "" if it can."""
    return "" if depth(network) else "has no hidden layer"


def steps(
    network: Network,
    corpus: Samples,
    theta: Array,
    options: Pretraining,
    seed: int,
    device: Cpu = CPU,
    deadline: float = DEADLINE,
) -> Iterator[PretrainingStep]:
    """Pre-train the initial parameters `theta`, on the device and in place, one minibatch per step.

    Raises TrainingFailed if the loss is no longer finite.
    """
    layers = depth(network)
    for layer in range(1, layers + 1):
        stage = grown(network, layer)
        vector = theta if layer == layers else device.to_device(stage.initial(seed, theta.dtype))
        vector[kept(network, layer)] = theta[kept(network, layer)]
        learner = learner_of(stage, corpus, seed, layer, theta.dtype, device, deadline)
        gradient, scratch = np.empty_like(vector), np.empty_like(vector)
        for work in minibatches(options, corpus.samples):
            loss = learner.gradient(vector, gradient, work)
            if not np.isfinite(loss):
                raise TrainingFailed("the pre-training diverged; a smaller pretraining.learning_rate may help")
            sgd(vector, gradient, scratch, eta=options.learning_rate)
            yield PretrainingStep(layer, layers, work.count, loss)
        learner.loader.close()
        theta[kept(network, layer)] = vector[kept(network, layer)]
