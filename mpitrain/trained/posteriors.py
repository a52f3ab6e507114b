"""The outputs of a trained network on a corpus: posteriors, their logarithms or scaled log-likelihoods.

`predict` writes them, and an exported network is compared with them. A decoder needs log p(x|y), which is
log p(y|x) − log p(y) up to a constant that all classes share (Bourlard & Morgan, Connectionist Speech Recognition,
1994): the posteriors divided by the class priors.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mpitrain.data.corpus import Corpus
from mpitrain.errors import BadInput, naming
from mpitrain.flat import Array
from mpitrain.monitoring.evaluation import TOGETHER
from mpitrain.trained.model import TrainedModel


def convert(z: Array, output: str, kind: str, log_priors: Array | None) -> Array:
    """Posteriors, log-posteriors or log-likelihoods, as `kind` says, in a new array.

    `output` is "softmax" or "logistic"; `log_priors` [classes] are for log-likelihoods, None for the other kinds.
    """
    logarithms = log_softmax(z) if output == "softmax" else log_sigmoid(z)
    if kind == "posteriors":
        return np.exp(logarithms, out=logarithms)
    return logarithms if log_priors is None else np.subtract(logarithms, log_priors, out=logarithms)


def log_softmax(z: Array) -> Array:
    """z − log Σ exp(z), with the largest z subtracted first."""
    shifted = z - z.max(axis=1, keepdims=True)
    return np.subtract(shifted, np.log(np.exp(shifted).sum(axis=1, keepdims=True)), out=shifted)


def log_sigmoid(z: Array) -> Array:
    """log(1 / (1 + exp(−z))) = min(z, 0) − log(1 + exp(−|z|))."""
    return np.minimum(z, 0) - np.log1p(np.exp(-np.abs(z)))


def log_priors(counts: Array, smoothing: float) -> Array:
    """log((count + smoothing) / Σ), float64 [classes]. Raises BadInput naming a class with probability zero."""
    smoothed = np.asarray(counts, np.float64) + smoothing
    if (smoothed <= 0).any():
        number = int(smoothed.argmin())
        raise BadInput(
            f"class {number} has a prior of 0, which nothing can be divided by; --smoothing 1 adds to counts"
        )
    return np.log(smoothed / smoothed.sum())


def read_priors(path: Path, classes: int) -> Array:
    """Counts or probabilities of the classes, from a text file of numbers, such as Kaldi's `[ 12 34 ... ]`, or a .npy.

    Raises BadInput naming the file.
    """
    with naming(f"{path}: no numbers", OSError, ValueError, TypeError, EOFError):
        if path.suffix == ".npy":
            numbers = np.load(path, allow_pickle=False).reshape(-1).astype(np.float64)
        else:
            text = path.read_text(encoding="utf-8-sig").strip()  # editors of Windows write a byte order mark
            numbers = np.array(text.removeprefix("[").removesuffix("]").split(), np.float64)
    if numbers.shape != (classes,) or not np.isfinite(numbers).all() or (numbers < 0).any():
        raise BadInput(f"{path}: expected {classes} numbers, none below 0; found {numbers.size}")
    return numbers


Compute = Callable[[slice], Array]  # the rows float32 [n, classes] of the samples in a slice


def computing(model: TrainedModel, corpus: Corpus, kind: str, priors: Array | None) -> Compute:
    """A function from a slice of the corpus, of at most TOGETHER samples, to the network's outputs of that kind."""
    dtype = model.parameters.dtype
    batch = corpus.form.room(TOGETHER, dtype)

    def compute(part: slice) -> Array:
        indices = np.arange(part.start, part.stop)
        some = corpus.gather(indices, batch.first(len(indices)))
        z = model.network.outputs(model.parameters, some.inputs)
        return convert(z, model.network.output, kind, priors).astype(np.float32, copy=False)

    return compute


def priors_of(model: TrainedModel, options: argparse.Namespace) -> Array | None:
    """The log priors for log-likelihoods; None for other kinds of output. Raises BadInput naming the option or file."""
    if options.output != "log-likelihoods":
        if options.priors is not None or options.smoothing is not None:
            raise BadInput(f"--priors and --smoothing: only for --output log-likelihoods, not {options.output}")
        return None
    smoothing = options.smoothing
    if smoothing is not None and not (smoothing >= 0 and math.isfinite(smoothing)):
        raise BadInput(f"--smoothing {smoothing}: at least 0")
    if options.priors is None:
        return log_priors(np.array(model.origin.class_counts), 1.0 if smoothing is None else smoothing)
    return log_priors(read_priors(options.priors, model.origin.classes), smoothing or 0.0)
