"""Figures of a trained network on blocks of neighbouring held-out samples, which `compare` resamples in pairs.

Neighbours, such as the frames of a phone or the windows of a file, are wrong together, so that single samples would
show a smaller standard error than there is.
"""

import json
from collections.abc import Mapping
from math import log, prod

import numpy as np

from mpitrain.flat import Array, share
from mpitrain.monitoring.evaluation import TOGETHER
from mpitrain.mpi import Transport
from mpitrain.sampling.batch import Batch
from mpitrain.trained.model import TrainedModel
from mpitrain.training.parts import Part

BLOCKS = 1000  # of a part, or as many as it has samples


def blocks_text(transport: Transport, model: TrainedModel, parts: Mapping[str, Part]) -> str:
    """As JSON, by part: lists `samples` and the sums `loss`, `error`, `bits_per_byte`, … of the blocks. Collective."""
    return json.dumps({part: _figures(transport, model, corpus) for part, corpus in parts.items()}) + "\n"


def _figures(transport: Transport, model: TrainedModel, corpus: Part) -> dict[str, list[float]]:
    blocks = min(BLOCKS, corpus.samples)
    sums = np.zeros((3, blocks))
    for block in range(transport.rank, blocks, transport.size):
        own = share(corpus.samples, block, blocks)
        sums[:, block] = *_evaluated(model, corpus, own), own.stop - own.start
    transport.sum(sums.reshape(-1), "the evaluation")
    loss, figure, samples = sums
    found = {"samples": samples, "loss": loss, model.network.merit: figure}
    if nbytes := corpus.form.bytes:
        found["bits_per_byte"] = loss / log(2) / nbytes
    return {name: values.tolist() for name, values in found.items()}


def _evaluated(model: TrainedModel, corpus: Part, block: slice) -> Array:
    """Summed loss and figure of merit."""
    most = max(1, TOGETHER // prod(corpus.form.targets))
    sums, room = np.zeros(2), corpus.form.room(most, model.parameters.dtype)
    for start in range(block.start, block.stop, most):
        indices = np.arange(start, min(start + most, block.stop))
        batch = corpus.gather(indices, Batch(*(buffer[: len(indices)] for buffer in room)))
        sums += model.network.evaluate(model.parameters, batch)
    return sums
