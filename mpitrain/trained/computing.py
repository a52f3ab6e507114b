"""Apply a trained network to a corpus: the rows that `predict` writes and with which an exported network is
compared."""

import argparse
import math
from collections.abc import Callable

import numpy as np

from mpitrain.data.batch import Batch
from mpitrain.data.corpus import Corpus
from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.monitoring.evaluation import TOGETHER
from mpitrain.trained import posteriors
from mpitrain.trained.model import Model

Compute = Callable[[slice], Array]  # the rows float32 [n, classes] of the samples in a slice


def computing(model: Model, corpus: Corpus, kind: str, priors: Array | None) -> Compute:
    """A function that maps a slice of a corpus's samples to the network's rows of that kind."""
    dtype = model.parameters.dtype
    batch = Batch(np.empty((TOGETHER, *corpus.shape), dtype), np.empty(TOGETHER, np.int32))

    def compute(part: slice) -> Array:
        some = Batch(*(buffer[: part.stop - part.start] for buffer in batch))
        corpus.gather(np.arange(part.start, part.stop), some)
        z = model.network.outputs(model.parameters, some.inputs)
        return posteriors.convert(z, model.output, kind, priors).astype(np.float32, copy=False)

    return compute


def log_priors(model: Model, options: argparse.Namespace) -> Array | None:
    """The log priors for log-likelihoods; None for other kinds of output. Raises BadInput naming the option or file."""
    if options.output != "log-likelihoods":
        if options.priors is not None or options.smoothing is not None:
            raise BadInput(f"--priors and --smoothing: only for --output log-likelihoods, not {options.output}")
        return None
    smoothing = options.smoothing
    if smoothing is not None and not (smoothing >= 0 and math.isfinite(smoothing)):
        raise BadInput(f"--smoothing {smoothing}: at least 0")
    if options.priors is None:
        return posteriors.log_priors(np.array(model.origin.class_counts), 1.0 if smoothing is None else smoothing)
    return posteriors.log_priors(posteriors.read_priors(options.priors, model.origin.classes), smoothing or 0.0)
