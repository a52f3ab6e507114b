"""Pre-training of the initial weights, one hidden layer after another: rank 0 computes them before any algorithm
starts, and all ranks receive them.

`layerwise` is supervised (Seide, Li, Chen & Yu, Feature engineering in context-dependent deep neural networks, ASRU
2011; Strom 2015, §3.3): a network with one hidden layer is trained briefly by back-propagation; its output layer is
replaced by the next hidden layer and a new output layer, and the whole is trained again; and so on to the full depth.

`contrastive_divergence` trains restricted Boltzmann machines, one on top of the other (the networks of Zhang 2013;
Hinton, Osindero & Teh 2006). The first machine's visible units are Gaussian, for real-valued inputs of about unit
variance; the others' are the sigmoid units below. A machine starts from small weights of its own: the network's are so
large that its hidden units are saturated, which suits back-propagation and leaves a machine nothing to learn. The
output layer is not changed. A machine's step is one of contrastive divergence (Hinton, Training products of experts by
minimizing contrastive divergence, Neural Computation 2002; A practical guide to training RBMs, 2010).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from mpitrain.algorithms.optimizers.sgd import sgd
from mpitrain.config import Pretraining
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.errors import BadInput, TrainingFailed
from mpitrain.flat import Array
from mpitrain.models.layers.fully_connected import FullyConnected
from mpitrain.models.layers.sigmoid import Sigmoid
from mpitrain.models.model import Model
from mpitrain.models.network import Network, network_of_layers
from mpitrain.sampling.batch import Samples
from mpitrain.sampling.queue import Queue, Work
from mpitrain.sampling.rng import stream
from mpitrain.sampling.stages import Training
from mpitrain.start import DEADLINE
from mpitrain.training.gradients import Learner

#: Factor of the learning rate for the machine with Gaussian units, which would diverge at that of the others (Hinton's
#: guide, §13.2).
GAUSSIAN_RATE = 0.1
#: Standard deviation of a machine's initial weights, whose biases start at 0 (Hinton's guide, §8).
INITIAL = 0.01


class PretrainingStep(NamedTuple):
    """A completed minibatch in pre-training hidden layer `layer` (from 1) of `layers`, with its mean loss."""

    layer: int
    layers: int
    samples: int
    loss: float


@dataclass(frozen=True)
class PretrainingTask:
    """The pre-training, in place, of the initial parameters `theta` of a network, on the device."""

    network: Network
    corpus: Samples
    theta: Array
    options: Pretraining
    seed: int
    device: Cpu = CPU
    deadline: float = DEADLINE

    def minibatches(self, network: Model, layer: int) -> Iterator[tuple[Learner, Work]]:
        """The minibatches of `options.epochs` epochs, in an order specific to the layer, with their learner."""
        seed = int(stream(self.seed, "pretraining", layer).integers(2**31))
        corpus, training = self.corpus, Training(seed=seed, dtype=self.theta.dtype.name)
        learner = Learner(network, corpus, training, device=self.device, deadline=self.deadline)
        queue = Queue(corpus.samples, round(self.options.epochs * corpus.samples))
        while (work := queue.next(self.options.minibatch)) is not None:
            yield learner, work
        learner.loader.close()


def layerwise(task: PretrainingTask, layer: int) -> Iterator[tuple[int, float]]:
    """Train the network up to this layer; yields samples and loss of each minibatch."""
    network, theta = task.network, task.theta
    stage, below = grown(network, layer), kept(network, layer)
    whole = layer == depth(network)
    vector = theta if whole else task.device.to_device(stage.initial(task.seed, theta.dtype))
    vector[below] = theta[below]
    gradient, scratch = np.empty_like(vector), np.empty_like(vector)
    for learner, work in task.minibatches(stage, layer):
        loss = learner.gradient(vector, gradient, work)
        sgd(vector, gradient, scratch, eta=task.options.learning_rate)
        yield work.count, loss
    theta[below] = vector[below]


def contrastive_divergence(task: PretrainingTask, layer: int) -> Iterator[tuple[int, float]]:
    """Train the machine of this layer; yields samples of each minibatch, and their reconstruction's squared error."""
    network, theta, device = task.network, task.theta, task.device
    views = network.layout.views(theta)
    weights, hidden = views[f"fc{layer}.weights"], views[f"fc{layer}.bias"]
    start = INITIAL * stream(task.seed, "machine", layer).standard_normal(weights.shape)
    weights[:], hidden[:] = device.to_device(start.astype(theta.dtype)), 0
    biases = np.zeros_like(weights[:, 0])  # of the visible units
    below = network.layers[: _starts(network)[layer - 1]] if layer > 1 else []
    learning_rate = task.options.learning_rate * (GAUSSIAN_RATE if layer == 1 else 1.0)
    for number, (learner, work) in enumerate(task.minibatches(network, layer)):
        visible = learner.load(work).inputs
        visible = visible.reshape(len(visible), -1)
        for each in below:
            visible = each.forward(views, visible, training=False)
        draws = stream(task.seed, "hidden units", layer, number).random((len(visible), hidden.size), np.float32)
        uniform = device.to_device(draws)
        error = machine_step(weights, hidden, biases, visible, uniform, eta=learning_rate, gaussian=layer == 1)
        yield work.count, error


def machine_step(
    weights: Array, hidden: Array, biases: Array, v: Array, uniform: Array, *, eta: float, gaussian: bool
) -> float:
    """CD-1 on the minibatch `v` [n, visible], in place: on weights [visible, hidden], and the biases of the hidden and
    of the visible units. Returns the squared error of the reconstruction, per example.

    Hidden units are binary; visible ones are binary, represented by their probabilities, or `gaussian`, of unit
    variance. `uniform` [n, hidden] in [0, 1) samples h: W += η⟨v·p(h|v) − v′·p(h|v′)⟩ with v′ the mean of v given h.
    """
    up = sigmoid(v @ weights + hidden)
    sampled = (uniform < up).astype(v.dtype)
    down = sampled @ weights.T + biases
    if not gaussian:
        down = sigmoid(down)
    again = sigmoid(down @ weights + hidden)
    rate = eta / len(v)
    weights += rate * (v.T @ up - down.T @ again)
    hidden += rate * (up - again).sum(axis=0)
    missing = v - down
    biases += rate * missing.sum(axis=0)
    return float(np.vdot(missing, missing)) / len(v)


def sigmoid(x: Array) -> Array:
    """1/(1 + exp(−x))."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


METHODS: dict[str, Callable[[PretrainingTask, int], Iterator[tuple[int, float]]]] = {
    "layerwise": layerwise,
    "contrastive-divergence": contrastive_divergence,
}


def steps(task: PretrainingTask) -> Iterator[PretrainingStep]:
    """Pre-train as the task's options say, one minibatch per step. Raises TrainingFailed if the loss is no longer
    finite."""
    layers = depth(task.network)
    for layer in range(1, layers + 1):
        for samples, loss in METHODS[task.options.method](task, layer):
            if not np.isfinite(loss):
                raise TrainingFailed("the pre-training diverged; a smaller pretraining.learning_rate may help")
            yield PretrainingStep(layer, layers, samples, loss)


def require_fit(options: Pretraining, network: Model) -> None:
    """Raise BadInput if the method cannot pre-train the network."""
    if options.method == "none":
        return
    layers = network_of_layers(network, "layers", f"pretraining.method = {options.method!r}").layers
    hidden = [(layer, after) for layer, after in pairwise([*layers, None]) if layer and layer.parameters][:-1]
    lacks = "" if hidden else "has no hidden layer"
    for layer, after in hidden if options.method == "contrastive-divergence" else ():
        if not (isinstance(layer, FullyConnected) and layer.columns == 1 and isinstance(after, Sigmoid)):
            lacks = "has hidden layers that are not fully connected sigmoid ones"
    if lacks:
        raise BadInput(f"pretraining.method = {options.method!r}: the network {lacks}")


# ---- shallower networks: the first layers of a network, with or without an output layer of their own


def depth(network: Network) -> int:
    """Number of hidden layers with parameters."""
    return len(_starts(network)) - 1


def kept(network: Network, count: int) -> slice:
    """The slice of the parameters of the first `count` hidden layers, in the network and in all its shallower ones."""
    return slice(0, network.slices[_starts(network)[count]].start)


def grown(network: Network, count: int) -> Network:
    """The layers up to the `count`-th hidden one with parameters, and before the next one, with an output layer; for
    all of them, a copy of the network."""
    starts, layers = _starts(network), network.layers
    return Network(
        [layer.options.make() for layer in (*layers[: starts[count]], layers[starts[-1]])],
        network.input_shape,
        network.loss,
        l2=network.l2,
        l2_biases=network.l2_biases,
        workspace=network.workspace.another(),
    )


def _starts(network: Network) -> list[int]:
    """The indices of the layers with parameters; the last one is the output layer."""
    return [number for number, layer in enumerate(network.layers) if layer.parameters]
