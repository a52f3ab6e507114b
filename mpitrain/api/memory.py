"""What a training needs of a node's memory: without room for it the kernel would kill the process, and say nothing."""

import os
from math import prod

import numpy as np

from mpitrain.config import Config
from mpitrain.data.corpus import Corpus
from mpitrain.errors import BadInput
from mpitrain.models.model import Model
from mpitrain.models.network import Network


def require(config: Config, network: Model, corpus: Corpus, simulated: int) -> None:
    """Raise BadInput for a network that does not fit into this node's memory.

    Counted is the least that a training needs: in a process, parameters and gradient; in a simulation of `simulated`
    ranks, which share this process, all vectors and activations of every rank, and the samples once.
    """
    itemsize, there = np.dtype(config.training.dtype).itemsize, installed()
    size = network.layout.size
    if 2 * size * itemsize > there:
        raise BadInput(
            f"{_sized(config, network)} has {size:,} parameters; with their gradient they take "
            f"{2 * size * itemsize / 1e9:,.0f} GB, this node has {there / 1e9:,.0f} GB"
        )
    if not simulated:
        return
    count, activations = config.algorithm.vectors(), activations_of(config, network, simulated)
    needed = simulated * (count * size + activations) * itemsize + corpus.held_bytes
    if needed > there:
        raise BadInput(
            f"--ranks {simulated}: need at least {needed / 1e9:,.1f} GB, this machine has {there / 1e9:,.1f} GB: each "
            f"rank {count} vectors of {size:,} parameters and {activations:,} activations of its minibatch, {itemsize} "
            f"bytes each; all together {corpus.held_bytes / 1e6:,.0f} MB of samples"
        )


def installed() -> int:
    """Bytes of memory of this node."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def activations_of(config: Config, network: Model, ranks: int) -> int:
    """Outputs of all layers for the samples of one rank's gradient; 0 for a model whose layers are not known."""
    if not isinstance(network, Network):
        return 0
    share = config.algorithm.samples_of_gradient(config.training.minibatch, ranks)
    return share * sum(prod(layer.output_shape) for layer in network.layers)


def _sized(config: Config, network: Model) -> str:
    """The network with the keys that make it so large, for messages."""
    if config.model.preset is None:
        return network.name
    return f"model.preset, model.width: {config.model.preset} of width {config.model.width:g}"
