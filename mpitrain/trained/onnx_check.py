"""Compare the outputs of onnxruntime for real inputs with those of this program."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mpitrain.data.augmentation import Augmentation
from mpitrain.errors import BadInput, TrainingFailed, first_line, library
from mpitrain.monitoring.evaluation import TOGETHER
from mpitrain.trained.model import TrainedModel
from mpitrain.trained.onnx_graph import GraphOptions
from mpitrain.trained.posteriors import computing
from mpitrain.training.parts import held_out

MOST = 4 * TOGETHER  # most samples to compare
TOLERANCE = 1e-5  # absolute for posteriors; relative for logarithms below −1


def checked(model: TrainedModel, content: bytes, options: GraphOptions, wanted: bool | None, path: Path | None) -> str:
    """The end of a message that says how much onnxruntime and this program differ, or why they were not compared.

    `wanted`: True compares or raises BadInput, None compares if possible, False does not. `path`: a shard folder, None
    for the run's own. Raises TrainingFailed if they differ too much, or onnxruntime refuses the file.
    """
    if wanted is False:
        return "; not checked"
    try:
        farthest, samples, part = _compare(model, content, options, path)
    except BadInput as reason:
        if wanted or path is not None:
            raise
        return f"; not checked: {reason}"
    if not farthest <= TOLERANCE:
        raise TrainingFailed(f"the ONNX file differs by {farthest:.1e} from this network on {part}; not written")
    return f"; onnxruntime differs by at most {farthest:.1e} on {samples} samples of {part}"


def _compare(model: TrainedModel, content: bytes, options: GraphOptions, path: Path | None) -> tuple[float, int, str]:
    onnxruntime = library("onnxruntime", "this needs onnxruntime", "onnx")
    part = next(iter(held_out(model.shards(path).parts())), "train")
    seen = model.open(path, part, memory_limit=0)
    in_graph = seen.kind == "images" or model.config.data.normalise == "corpus"
    normalise = "none" if in_graph else model.config.data.normalise
    given = model.open(path, part, memory_limit=0, dtype="float32", augmentation=Augmentation(), normalise=normalise)
    compute = computing(model, seen, options.kind, options.log_priors)
    with _refusing(f"onnxruntime {onnxruntime.__version__} refuses the file"):
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    kind = np.uint8 if session.get_inputs()[0].type == "tensor(uint8)" else np.float32
    distances, samples = [], min(seen.samples, MOST)
    for start in [0, *range(1, samples, TOGETHER)]:  # also test a batch of one
        stop = min(start + TOGETHER, samples) if start else 1
        batch = given.gather(np.arange(start, stop), given.form.room(stop - start, np.float32))
        with _refusing(f"onnxruntime {onnxruntime.__version__} fails on {part}"):
            said = session.run(None, {session.get_inputs()[0].name: batch.inputs.astype(kind)})[0]
        with np.errstate(over="ignore", invalid="ignore"):  # seen in the distance
            ours = compute(slice(start, stop))
        distances.append((np.abs(said - ours) / np.maximum(np.abs(ours), 1)).max())  # relative beyond ±1
    return float(np.max(distances)), samples, part  # NaN if any value is NaN, which Python's max() would pass over


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Turn an error of onnxruntime's, whose classes are not public, into TrainingFailed."""
    try:
        yield
    except Exception as error:
        raise TrainingFailed(f"{what}: {first_line(error)}; not written (--no-check writes it)") from None
