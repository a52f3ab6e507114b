"""Check what the configuration's tables cannot show: that ranks, data, model, memory and disk fit the training.

The functions `require_…` raise BadInput, naming the key if one is at fault.
"""

import os
from math import prod
from pathlib import Path

import numpy as np
import xxhash

from mpitrain.algorithms import name_of
from mpitrain.api.options import TrainOptions
from mpitrain.config import Config
from mpitrain.errors import BadInput
from mpitrain.models.model import Model
from mpitrain.models.network import Network
from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import odd_one
from mpitrain.mpi.enduring import NEEDED, EnduringCommunicator, tolerant
from mpitrain.start import usable_memory
from mpitrain.training.context import Session
from mpitrain.training.parts import Part


def require_keys(transport: Transport, config: Config, options: TrainOptions) -> None:
    """Refuse keys and options that do not fit these ranks, or that need values, which a phantom does not compute."""
    algorithm, run, name = config.algorithm, config.run, name_of(config.algorithm)
    phantom, method = options.phantom, config.pretraining.method
    simulated = transport.runtime.simulated
    loses = run.lost_ranks == "continue" and not isinstance(transport.comm, EnduringCommunicator)
    key = "run.lost_ranks = 'continue'"
    shared, on_gpu = algorithm.has_master and run.exchange == "shared", run.device == "gpu"
    for wrong, why in (
        (shared and transport.nodes > 1, "run.exchange = 'shared': the ranks are on several nodes"),
        (on_gpu and simulated, "run.device = 'gpu': simulated ranks compute on the CPU"),
        (loses and simulated, f"{key}: simulated ranks do not go on without others; leave it and run.spares out"),
        (loses and transport.size > 1, f"{key}: needs {'python -m mpitrain train' if tolerant() else NEEDED}"),
        (options.density and not phantom, "--density: only with --phantom: gradients show what they send"),
        (phantom and algorithm.divides, f"--phantom: {name}: its layers are divided over the ranks"),
        (options.density and not algorithm.sparse, f"--density: {name} sends whole vectors"),
        (phantom and (options.resume or options.continued), "--phantom: leaves no checkpoint to resume from"),
        (phantom and method != "none", f"--phantom: pretraining.method = {method!r}: nothing is trained"),
        (phantom and run.gradient_statistics, "--phantom: run.gradient_statistics: there are no gradients"),
        (phantom and run.record_order, "--phantom: run.record_order: there is nothing to repeat to the bit"),
    ):
        if wrong:
            raise BadInput(why)


def require_whole_samples(config: Config, samples: int) -> None:
    """Refuse a length in epochs that amounts to less than one sample."""
    lengths = {"training.epochs": config.training.epochs, "run.evaluate_every": config.run.evaluate_every}
    if config.pretraining.method != "none":
        lengths["pretraining.epochs"] = config.pretraining.epochs
    for key, epochs in lengths.items():
        if epochs and round(epochs * samples) == 0:
            raise BadInput(f"{key} = {epochs:g}: not one of the {samples:,} samples of an epoch")


def require_memory(config: Config, network: Model, corpus: Part, simulated: int) -> None:
    """Refuse a network that does not fit into this node's memory: the kernel would kill the process without a message.

    This counts the least that a training needs: in a process, parameters and gradient; in a simulation of `simulated`
    ranks, which share this process, all vectors and activations of every rank, and the samples once.
    """
    itemsize, there = np.dtype(config.training.dtype).itemsize, usable_memory()
    size = network.layout.size
    if 2 * size * itemsize > there:
        preset, width = config.model.preset, config.model.width
        large = network.name if preset is None else f"model.preset, model.width: {preset} of width {width:g}"
        raise BadInput(
            f"{large} has {size:,} parameters; with their gradient they take "
            f"{2 * size * itemsize / 1e9:,.1f} GB, a process may have {there / 1e9:,.1f} GB"
        )
    if not simulated:
        return
    layers = network.layers if isinstance(network, Network) else ()  # other models' are not known
    samples = config.algorithm.samples_of_gradient(config.training.minibatch, simulated)
    count, activations = config.algorithm.vectors(), samples * sum(prod(layer.output_shape) for layer in layers)
    needed = simulated * (count * size + activations) * itemsize + corpus.held_bytes
    if needed > there:
        raise BadInput(
            f"--ranks {simulated}: need at least {needed / 1e9:,.1f} GB, a process may have {there / 1e9:,.1f}: each "
            f"rank {count} vectors of {size:,} parameters and {activations:,} activations of its minibatch, {itemsize} "
            f"bytes each; all together {corpus.held_bytes / 1e6:,.0f} MB of samples"
        )


def require_fallback(config: Config) -> None:
    """Refuse a `run.fallback`, for a last checkpoint, in which no file can be written."""
    folder = config.run.fallback
    if folder and not Path(folder).is_dir():
        raise BadInput(f"run.fallback = {folder!r}: no such folder")
    if folder and not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput(f"run.fallback = {folder!r}: cannot be written")


def require_same_data(transport: Transport, config: Config, corpus: Part) -> None:
    """Refuse a rank's training part that differs from rank 0's, such as an old copy on a local disk. Collective."""
    shape = " x ".join(map(str, corpus.shape))
    mine = f"{corpus.samples:,} samples of {shape} in {corpus.classes} classes"
    with transport.working():
        texts = transport.gather_texts(f"{mine}\n{corpus.identity()}", "the data")
    if rank := odd_one(texts):
        (found, _), (expected, _) = texts[rank].split("\n"), texts[0].split("\n")
        same = ", others than rank 0" if found == expected else f", rank 0 {expected}"
        raise BadInput(f"data.{'import' if config.data.import_ else 'path'}: rank {rank} has {found}{same}")


def require_same_model(session: Session) -> None:
    """Refuse user code that builds another model on some rank than on rank 0. Collective."""
    network, transport = session.network, session.transport
    if not network.documents:  # made of our own layers, it follows from the configuration alone
        return
    theta = session.state.theta
    with transport.working():
        sums = [xxhash.xxh3_64_hexdigest(part.tobytes()) for part in (theta, *network.kept(theta).values())]
    if rank := odd_one(transport.gather_texts(" ".join((str(theta.size), *sums)), "the model")):
        raise BadInput(f"{network.name}: gives rank {rank} other initial weights or constants than rank 0")
