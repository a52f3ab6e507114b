"""The exported graph against this program's own evaluation, for every layer and preset, on inputs cut by hand."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnx
import onnxruntime
import pytest

from mpitrain.errors import BadInput, TrainingFailed
from mpitrain.flat import Layout
from mpitrain.models.layer import Layer, LayerOptions
from mpitrain.models.layers.convolution import ConvolutionOptions as Convolution
from mpitrain.models.layers.dropout import DropoutOptions as Dropout
from mpitrain.models.layers.fully_connected import FullyConnectedOptions as FullyConnected
from mpitrain.models.layers.group_norm import GroupNormOptions as GroupNorm
from mpitrain.models.layers.local_response_norm import LocalResponseNormOptions as LocalResponseNorm
from mpitrain.models.layers.max_pool import MaxPoolOptions as MaxPool
from mpitrain.models.layers.relu import ReluOptions as Relu
from mpitrain.models.layers.sigmoid import SigmoidOptions as Sigmoid
from mpitrain.models.losses import LOSSES
from mpitrain.models.network import Network
from mpitrain.models.presets import PRESETS
from mpitrain.trained import onnx_check
from mpitrain.trained.export import metadata
from mpitrain.trained.model import TrainedModel, load
from mpitrain.trained.onnx_graph import GraphOptions, serialise

from .conftest import make_frames, make_images, make_run

IMAGES: dict[str, tuple[int, int, int]] = {
    "digits-cnn": (8, 8, 1),
    "easgd-cifar": (28, 28, 3),
    "easgd-imagenet": (221, 221, 3),
    "krizhevsky2014": (224, 224, 3),
}
WIDTH = {"easgd-imagenet": 0.05, "krizhevsky2014": 0.05, "zhang2013-dnn": 0.02, "strom2015-dnn": 0.02}


def run_of(folder: Path, preset: str, *settings: str) -> TrainedModel:
    """A run of a preset on images of its size, or on frames 3 + 1 + 2."""
    width = (f"model.preset={preset}", f"model.width={WIDTH.get(preset, 0.1)}", f"data.path={folder / 'data'}")
    if preset in IMAGES:
        make_images(folder / "data", IMAGES[preset])
    else:
        dims = 23 if preset == "chan2014-cnn" else 6
        make_frames(folder / "data", dims=dims)
        settings = (f"data.context=[{11 if dims == 23 else 3},{11 if dims == 23 else 2}]", *settings)
    make_run(folder / "run", *width, *settings)
    return load(folder / "run")


def onnx_says(content: bytes, inputs: np.ndarray) -> np.ndarray:
    """What onnxruntime says of a batch."""
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: inputs})[0])


def raw_windows(path: Path, left: int, right: int) -> np.ndarray:
    """Windows of the features as they lie in a shard, the utterances' edge frames repeated: by the definition."""
    with h5py.File(path) as file:
        features, offsets = file["features"][:], file["utterances"][:]
    windows = []
    for first, end in pairwise(offsets):
        padded = np.concatenate([[features[first]] * left, features[first:end], [features[end - 1]] * right])
        windows += [padded[t : t + left + 1 + right] for t in range(end - first)]
    return np.array(windows)


def softmax(z: np.ndarray) -> np.ndarray:
    """In float64."""
    e = np.exp(z.astype(np.float64) - z.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_agrees_with_training_time_evaluation(tmp_path: Path, preset: str) -> None:
    """To 1e-5, from raw inputs that this test reads and normalises itself."""
    model = run_of(tmp_path, preset)
    content = serialise(model, GraphOptions(image_type="uint8" if preset in IMAGES else None), {})
    path = tmp_path / "data" / "test-00000-of-00001.h5"
    if preset in IMAGES:
        with h5py.File(path) as file:
            raw = file["images"][:]
    else:
        raw = raw_windows(path, *model.config.data.context)
    with h5py.File(path) as file:
        normalised = ((raw - file.attrs["mean"]) / file.attrs["standard_deviation"]).astype(np.float32)
    z = model.network.outputs(model.parameters, normalised).copy()
    expected = softmax(z) if model.network.output == "softmax" else 1 / (1 + np.exp(-z.astype(np.float64)))
    found = onnx_says(content, raw)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
    assert found.std() > 1e-4  # something to disagree about
    np.testing.assert_allclose(onnx_says(content, raw[:1]), expected[:1], atol=1e-5, rtol=0)


LAYERS: dict[str, tuple[list[LayerOptions], tuple[int, ...]]] = {
    "fc": ([], (7,)),
    "fc on images": ([], (4, 5, 3)),
    "columns": ([FullyConnected(6, columns=3), Relu(), FullyConnected(4, columns=2)], (9,)),
    "columns of images": ([FullyConnected(6, columns=3)], (4, 5, 3)),
    "relu": ([FullyConnected(6), Relu()], (7,)),
    "sigmoid": ([FullyConnected(6), Sigmoid()], (7,)),
    "dropout": ([FullyConnected(6), Dropout(0.5)], (7,)),
    "dropout, scaled in evaluation": ([FullyConnected(6), Dropout(0.25, "evaluation")], (7,)),
    "conv": ([Convolution(4, 3)], (6, 7, 2)),
    "conv, strides and padding": ([Convolution(4, 3, stride=2, pad=1)], (7, 6, 2)),
    "conv with pool": ([Convolution(4, 2, pool=3, pool_stride=2)], (9, 8, 2)),
    "even kernel, odd image": ([Convolution(3, 2, stride=2), Relu(), Convolution(4, 2)], (9, 7, 1)),
    "conv in groups": ([Convolution(6, 2, groups=3)], (5, 4, 3)),
    "pool": ([MaxPool(2)], (7, 6, 2)),
    "overlapping pool": ([MaxPool(3, 2)], (8, 9, 2)),
    "norm": ([LocalResponseNorm(size=3, scale=0.5, power=0.75, offset=1.5)], (3, 4, 7)),
    "group norm": ([GroupNorm(3, 0.01), Relu(), Convolution(4, 2), GroupNorm(2)], (4, 5, 6)),
    "norm of more channels than there are": ([Relu(), LocalResponseNorm(scale=0.1)], (3, 3, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_agrees(tmp_path: Path, name: str) -> None:
    """In a network of its own, with biases that are not 0."""
    layers, shape = LAYERS[name]
    network = Network([layer.make() for layer in (*layers, FullyConnected(4))], shape, LOSSES["softmax"])
    rng = np.random.default_rng(2)
    parameters = (network.initial(1) + 0.1 * rng.standard_normal(network.layout.size)).astype(np.float32)
    images = len(shape) == 3
    make_images(tmp_path / "data", shape) if images else make_frames(tmp_path / "data", dims=shape[0])  # type: ignore[arg-type]
    run = ("data.normalise=none", f"data.path={tmp_path / 'data'}")
    make_run(tmp_path / "run", *run, "model.preset=strom2015-dnn", "model.width=0.01")
    there = load(tmp_path / "run")
    if not images:
        network = Network([layer.make() for layer in (*layers, FullyConnected(4))], (1, *shape), LOSSES["softmax"])
    model = TrainedModel(there.run, there.config, there.origin, network, parameters, there.checkpoint, 0, {})
    x = rng.standard_normal((3, *shape) if images else (3, 1, *shape)).astype(np.float32)
    z = network.outputs(parameters, x.copy()).copy()
    found = onnx_says(serialise(model, GraphOptions("log-posteriors", image_type="float32" if images else None), {}), x)
    np.testing.assert_allclose(found, np.log(softmax(z)), atol=1e-5, rtol=1e-5)


def test_every_kind_of_layer_has_been_tried() -> None:
    """So that a new one cannot be forgotten."""

    def kinds(of: type) -> set[type]:
        return {of}.union(*(kinds(sub) for sub in of.__subclasses__()))

    there = {kind for kind in kinds(Layer) if kind.__module__.startswith("mpitrain.models.layers.")}
    tried = [FullyConnected(1), *(layer for layers, _ in LAYERS.values() for layer in layers)]
    assert there == {type(layer.make()) for layer in tried}


class Unknown(Layer):
    """A layer that nobody has translated."""

    kind = "unknown"

    def forward(self, views: Any, x: Any, training: bool = False, rng: Any = None) -> Any:
        return x

    def backward(self, views: Any, gradients: Any, dy: Any, need_dx: bool = True) -> Any:
        return dy

    def torch(self, torch: Any, x: Any, own: Any, training: bool) -> Any:
        return x


def test_a_layer_without_a_translation_is_named(tmp_path: Path) -> None:
    model = run_of(tmp_path, "digits-cnn")
    network = Network([Unknown(None), FullyConnected(4).make()], (8, 8, 1), LOSSES["softmax"])
    other = TrainedModel(model.run, model.config, model.origin, network, network.initial(1), model.checkpoint, 0, {})
    with pytest.raises(BadInput, match="nothing for the layer unknown1"):
        serialise(other, GraphOptions(), {})


@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize("kind", ["posteriors", "log-posteriors", "log-likelihoods"])
@pytest.mark.parametrize("output", ["softmax", "logistic"])
def test_every_kind_of_values_in_every_opset(tmp_path: Path, kind: str, output: str, opset: int) -> None:
    """With a centre crop inside, from floating point pixels too; the comparison of `export` itself."""
    make_images(tmp_path / "data", (12, 11, 3))
    settings = ("model.preset=digits-cnn", "model.width=0.2", "data.crop=8", "data.normalise=unit")
    make_run(tmp_path / "run", *settings, f"data.path={tmp_path / 'data'}", f"model.output={output}")
    model = load(tmp_path / "run")
    priors = np.log([0.1, 0.2, 0.3, 0.4]) if kind == "log-likelihoods" else None
    with h5py.File(tmp_path / "data" / "test-00000-of-00001.h5") as file:
        raw = file["images"][:]
    z = model.network.outputs(model.parameters, (raw[:, 2:10, 1:9] / 255).astype(np.float32)).astype(np.float64)
    expected = np.log(softmax(z)) if output == "softmax" else -np.log1p(np.exp(-z))
    expected = np.exp(expected) if kind == "posteriors" else expected - (0 if priors is None else priors)
    for pixels in ("uint8", "float32"):
        options = GraphOptions(kind, opset, pixels, priors)
        content = serialise(model, options, {})
        np.testing.assert_allclose(onnx_says(content, raw.astype(pixels)), expected, atol=1e-5)
        assert "at most" in onnx_check.checked(model, content, options, True, None)
        assert onnx.load_from_string(content).opset_import[0].version == opset


def test_a_graph_that_says_something_else_is_caught(tmp_path: Path) -> None:
    """One weight changed after the export."""
    model = run_of(tmp_path, "digits-cnn")
    content = serialise(model, GraphOptions(), {})
    model.parameters[-1] += 0.01
    with pytest.raises(TrainingFailed, match="differs by"):
        onnx_check.checked(model, content, GraphOptions(), None, None)
    with pytest.raises(TrainingFailed, match="refuses the file"):
        onnx_check.checked(model, b"no graph", GraphOptions(), None, None)
    assert "not checked" in onnx_check.checked(model, content, GraphOptions(), False, None)


def test_outputs_that_are_no_numbers_are_caught(tmp_path: Path) -> None:
    """The largest of differences that are not all numbers is not 0."""
    model = run_of(tmp_path, "digits-cnn")
    model.parameters[-1] = np.nan
    with pytest.raises(TrainingFailed, match="differs by nan"):
        onnx_check.checked(model, serialise(model, GraphOptions(), {}), GraphOptions(), None, None)


@pytest.mark.parametrize("how", ["speaker", "utterance", "corpus", "none"])
def test_features_are_normalised_inside_where_they_can_be(tmp_path: Path, how: str) -> None:
    """By the corpus, or not at all; those of speakers and utterances are taken as they come in."""
    make_frames(tmp_path / "data")
    for path in (tmp_path / "data").glob("*.h5"):
        with h5py.File(path, "r+") as file:
            del file.attrs["xxh3"]
            file.create_dataset("speakers", data=np.zeros(len(file["keys"]), np.int32), fletcher32=True, chunks=(1,))
    settings = ("model.preset=strom2015-dnn", "model.width=0.02", f"data.path={tmp_path / 'data'}")
    make_run(tmp_path / "run", *settings, f"data.normalise={how}", "data.context=[2,1]")
    model = load(tmp_path / "run")
    content = serialise(model, GraphOptions(), {})
    assert "at most" in onnx_check.checked(model, content, GraphOptions(), True, None)
    names = {node.op_type for node in onnx.load_from_string(content).graph.node}
    assert ("Sub" in names) == (how == "corpus")


def test_the_file_tells_what_it_is(tmp_path: Path) -> None:
    """Names, shapes with a free batch axis, metadata."""
    model = run_of(tmp_path, "zhang2013-dnn")
    made = onnx.load_from_string(serialise(model, GraphOptions("log-posteriors"), metadata(model)))
    (given,), (out,) = made.graph.input, made.graph.output
    shapes = [[d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim] for value in (given, out)]
    assert (given.name, out.name, shapes) == ("features", "log_posteriors", [["batch", 6, 6], ["batch", 4]])
    told = {prop.key: prop.value for prop in made.metadata_props}
    assert told["classes"] == "4" and told["parameters_sha256"] == model.sha256
    assert json.loads(told["context"]) == [3, 2] and len(told["config_sha256"]) == 64
    names = {constant.name for constant in made.graph.initializer}
    assert names >= set(Layout(model.network.layout.parameters).slices)


def test_bad_options_are_named(tmp_path: Path) -> None:
    model = run_of(tmp_path, "strom2015-dnn")
    for opset in (12, 1000):
        with pytest.raises(BadInput, match=f"--opset {opset}: from 13 to"):
            serialise(model, GraphOptions(opset=opset), {})
    with pytest.raises(BadInput, match="--input uint8: only for images"):
        serialise(model, GraphOptions(image_type="uint8"), {})


def test_a_graph_is_written_without_docstrings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with PYTHONOPTIMIZE=2."""
    monkeypatch.setattr("mpitrain.trained.onnx_graph.__doc__", None)
    model = run_of(tmp_path, "digits-cnn")
    assert serialise(model, GraphOptions(), metadata(model))
