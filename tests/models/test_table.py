"""The table of layers: what a configuration can list, what is refused, and the networks that are built of it."""

import re
import tomllib
from itertools import product
from math import exp, log
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mpitrain import config as configuration
from mpitrain.api.train import explained
from mpitrain.errors import BadInput
from mpitrain.models.design import Design
from mpitrain.models.layers import LAYERS, AnyLayer
from mpitrain.models.layers.convolution import Convolution
from mpitrain.models.layers.fully_connected import FullyConnectedOptions
from mpitrain.models.model import Draws
from mpitrain.models.network import network
from mpitrain.models.presets import PRESETS
from mpitrain.sampling.batch import Batch, SampleForm
from mpitrain.training.inputs import design_of, network_of

from .gradients import directional_error

#: Every kind of layer.
ALL = """
{kind = "convolution", filters = 5, kernel = 3, pad = 1, pool = 3, pool_stride = 2, deviation = 0.3, bias = 0.2},
{kind = "relu"}, {kind = "local-response-norm", size = 3, scale = 0.1, power = 0.5, offset = 1.5},
{kind = "convolution", filters = 4, kernel = 2, gain = 1, stride = 1}, {kind = "group-norm", groups = 2, eps = 0.1},
{kind = "max-pool", size = 2, stride = 1},
{kind = "sigmoid"}, {kind = "dropout", rate = 0.3}, {kind = "fully-connected", units = 6, columns = 2, gain = 3},
{kind = "sigmoid"}, {kind = "dropout", scaled = "evaluation"}, {kind = "fully-connected"}
"""


def config_of(layers: str, *settings: str) -> configuration.Config:
    return configuration.load(None, [f"model.layers=[{' '.join(layers.split())}]", *settings])


def test_the_example_has_every_kind() -> None:
    assert {layer.kind for layer in design_of(config_of(ALL)).layers} == set(LAYERS)


def test_a_network_of_every_kind_is_as_listed() -> None:
    """Sizes and initial values, by hand; names and order of the parameters as in the presets."""
    made = network_of(config_of(ALL, "model.output=logistic", "model.l2=0.5"), SampleForm((8, 8, 2)), 10)
    assert (made.output, made.l2, made.name) == ("logistic", 0.5, "model.layers")
    assert [layer.name for layer in made.layers] == (
        [
            "conv1",
            "relu1",
            "norm1",
            "conv2",
            "groupnorm1",
            "pool1",
            "sigmoid1",
            "dropout1",
            "fc1",
            "sigmoid2",
            "dropout2",
            "fc2",
        ]
    )
    shapes = [layer.output_shape for layer in made.layers if layer.kind in ("conv", "pool", "fc")]
    assert shapes == [(3, 3, 5), (2, 2, 4), (1, 1, 4), (6,), (10,)]
    initial = {parameter.name: parameter.initial for parameter in made.layout.parameters}
    assert initial["conv1.weights"] == ("gaussian", 0.3) and initial["conv1.bias"] == ("constant", 0.2)
    assert initial["conv2.weights"] == ("gaussian", (1 / (2 * 2 * 5)) ** 0.5)
    assert initial["fc1.weights"] == ("gaussian", (3 / 2) ** 0.5)  # two inputs of its column
    assert initial["fc2.bias"] == ("constant", -log(9)) and 1 / (1 + exp(log(9))) == pytest.approx(1 / 10)


def test_the_gradient_of_every_kind_is_that_of_central_differences() -> None:
    made = network_of(config_of(ALL), SampleForm((8, 8, 2)), 7)
    rng = np.random.default_rng(1)
    batch = Batch(rng.standard_normal((3, 8, 8, 2)), np.array([6, 1, 0], np.int32))
    parameters = made.initial(4, np.float64)

    def loss(vector: np.ndarray, gradient: np.ndarray) -> float:
        return float(made.loss_and_gradient(vector, gradient, batch, Draws(np.random.default_rng(3))))

    gradient = np.full_like(parameters, np.nan)
    loss(parameters, gradient)
    assert directional_error(lambda x: loss(x, np.empty_like(x)), parameters, gradient) < 1e-5


OTHER = {"stride": 2, "pool": 3, "pool_stride": 2, "pad": 1, "filters": 4, "kernel": 5, "units": 6, "size": 7}
OTHER |= {"scale": 0.25, "power": 0.5, "offset": 1.25, "rate": 0.125, "gain": 0.75, "deviation": 0.375, "bias": 0.625}
OTHER |= {"eps": 0.5, "columns": 3, "groups": 2, "scaled": "evaluation"}


@pytest.mark.parametrize("kind", LAYERS)
def test_every_key_reaches_the_layer(kind: str) -> None:
    """Under its own name, and that of the pooling which a convolution includes."""
    keys = LAYERS[kind].__struct_fields__
    layer = msgspec.convert({"kind": kind} | {key: OTHER[key] for key in keys}, AnyLayer).make()
    assert msgspec.structs.asdict(layer.options) == {key: OTHER[key] for key in keys}
    if isinstance(layer, Convolution):
        assert layer.pool is not None and (layer.pool.size, layer.pool.stride) == (3, 2)


@pytest.mark.parametrize("preset", PRESETS)
def test_printed_layers_of_a_preset_give_the_same_network(preset: str) -> None:
    """The comments of --print-config, uncommented in place of the preset's keys."""
    config = configuration.load(None, [f"model.preset={preset}", "model.width=0.1", "model.dropout=0.25"])
    text = explained(config)
    assert configuration.resolve(tomllib.loads(text)) == config
    before, comment = text.split("[model]\n")[0], text.split("instead of the keys above:\n")[1].split("\n\n")[0]
    lines = [line.removeprefix("# ") for line in comment.splitlines()]
    listed = configuration.resolve(tomllib.loads(before + "[model]\n" + "\n".join(lines)))
    assert design_of(listed) == design_of(config)._replace(preset=None)


def test_a_list_reads_back_from_the_resolved_configuration() -> None:
    config = config_of(ALL, "model.output=logistic")
    assert configuration.resolve(tomllib.loads(configuration.to_toml(config))) == config
    assert explained(config) == configuration.to_toml(config)
    assert config.model.preset is None and config.model.width is None


LAST = ', {kind = "fully-connected"}'
REFUSED = [
    ('{kind = "convolutoin"}', r"model\.layers\[0\]\.kind = 'convolutoin': unknown; .* convolution$"),
    ("{filters = 3}", r"model\.layers\[0\]\.kind: missing; known: convolution, "),
    ('{kind = "relu", rate = 1}', r"unknown key model\.layers\[0\]\.rate"),
    ('{kind = "convolution", filtres = 3}', r"model\.layers\[0\]\.filtres; .* model\.layers\[0\]\.filters$"),
    ('{kind = "convolution", filters = 3}' + LAST, r"model\.layers\[0\]: .* `kernel`$"),
    ('{kind = "convolution", filters = 0, kernel = 1}' + LAST, r"model\.layers\[0\]\.filters: .* >= 1"),
    ('{kind = "fully-connected", gain = nan}', r"model\.layers\[0\]\.gain: "),
    ('{kind = "fully-connected", bias = inf}', r"model\.layers\[0\]\.bias: "),
    ('{kind = "local-response-norm", size = 4}' + LAST, r"model\.layers\[0\]: size = 4 is even"),
    (
        '{kind = "convolution", filters = 3, kernel = 3, pad = 3}' + LAST,
        r"model\.layers\[0\]: pad = 3: at least the ker",
    ),
    ("", r"model\.layers: no layer of kind \"fully-connected\""),
    ('{kind = "convolution", filters = 3, kernel = 1}', r"model\.layers: no layer of kind"),
    ('{kind = "fully-connected"}, {kind = "relu"}', r"model\.layers\[1\]\.kind = 'relu': follows the last"),
    ('{kind = "fully-connected"}' + LAST, r"model\.layers\[0\]\.units: missing"),
    ('{kind = "relu"}' + LAST, r"model\.layers\[0\]\.kind = 'relu': there is no layer before"),
    ('{kind = "dropout"}, {kind = "relu"}' + LAST, r"model\.layers\[1\]\.kind = 'relu': there is no layer before"),
    (
        '{kind = "fully-connected", units = 3}, {kind = "relu"}, {kind = "dropout"}, {kind = "sigmoid"}' + LAST,
        r"model\.layers\[3\]\.kind = 'sigmoid': it follows an activation, 'relu'",
    ),
]


@pytest.mark.parametrize(("layers", "line"), REFUSED)
def test_a_refused_list_names_the_key(layers: str, line: str) -> None:
    with pytest.raises(BadInput, match=line):
        config_of(layers)


AWKWARD = (
    "inf",
    "-inf",
    "nan",
    "1e300",
    "-1",
    "0",
    "1e-300",
    "-0.5",
    "9" * 30,
    "true",
    "'a'",
    "[]",
    "{}",
    "2020-01-01",
)


def test_awkward_values_of_every_key_are_taken_or_named() -> None:
    for kind, layer in LAYERS.items():
        needed = {"filters": "filters = 2, ", "kernel": "kernel = 1, ", "size": "size = 3, "}
        for key, value in product(layer.__struct_fields__, AWKWARD):
            others = "".join(text for name, text in needed.items() if name in layer.__struct_fields__ and name != key)
            first = '{kind = "fully-connected", units = 1}, '
            try:
                config = config_of(f'{first}{{kind = "{kind}", {others}{key} = {value}}}' + LAST)
            except BadInput as refusal:
                assert "model.layers[1]" in str(refusal) and (key in str(refusal) or "units" in str(refusal))
            else:
                assert configuration.resolve(tomllib.loads(configuration.to_toml(config))) == config


@pytest.mark.parametrize("value", ["3", "{}", "[3]", "'relu'"])
def test_layers_are_a_list_of_tables(value: str) -> None:
    with pytest.raises(BadInput, match=r"model\.layers.*: expected"):
        configuration.load(None, [f"model.layers={value}"])


@pytest.mark.parametrize("key", ["preset='digits-cnn'", "width=1.0", "hidden_layers=2", "dropout=0.1"])
def test_keys_of_presets_are_refused_beside_layers(key: str) -> None:
    with pytest.raises(BadInput, match=rf"^model\.{key.split('=')[0]}.*model\.layers"):
        config_of('{kind = "fully-connected"}', f"model.{key}")


CONV = '{kind = "convolution", filters = 3, kernel = 5}, {kind = "relu"}, '


@pytest.mark.parametrize(
    ("layers", "line"),
    [
        (CONV + '{kind = "convolution", filters = 3, kernel = 5}' + LAST, r"layers\[2\]\.kernel = 5: .* 4 x 4 pixels"),
        (CONV + '{kind = "max-pool", size = 5}' + LAST, r"layers\[2\]\.size = 5: .* 4 x 4 pixels"),
        ('{kind = "convolution", filters = 3, kernel = 5, pool = 5}' + LAST, r"layers\[0\]\.pool = 5: .* 4 x 4 pixels"),
        (CONV + '{kind = "convolution", filters = 4, kernel = 1, groups = 2}' + LAST, r"layers\[2\]\.groups = 2: 3 ch"),
        ('{kind = "fully-connected", units = 3}, ' + CONV[:-2] + LAST, r"layers\[1\]\.kind = 'convolution': .* 3 num"),
        ('{kind = "fully-connected", units = 3}, {kind = "max-pool", size = 1}' + LAST, r"layers\[1\]\.kind = 'max-p"),
        ('{kind = "fully-connected", units = 3}, {kind = "local-response-norm"}' + LAST, r"layers\[1\]\.kind = 'local"),
        ('{kind = "fully-connected", units = 11}', r"layers\[0\]\.units = 11: the data have 10 classes"),
    ],
)
def test_a_list_that_does_not_fit_the_data_names_the_key(layers: str, line: str) -> None:
    with pytest.raises(BadInput, match=r"^model\." + line):
        network_of(config_of(layers), SampleForm((8, 8, 1)), 10)


@pytest.mark.parametrize("first", ['{kind = "dropout"}, ', '{kind = "max-pool", size = 1}, ', ""])
def test_frames_are_images_of_one_channel_where_images_are_wanted(first: str) -> None:
    made = network_of(config_of(first + CONV + LAST[2:]), SampleForm((12, 9)), 4)
    assert made.input_shape == (12, 9, 1) and made.layers[-1].input_shape == (8, 5, 3)
    assert network_of(config_of(LAST[2:]), SampleForm((12, 9)), 4).input_shape == (12, 9)


def test_units_of_the_last_layer_may_be_said() -> None:
    design: Any = Design([FullyConnectedOptions(4)])
    assert network(design, (3,), 4).classes == 4


CHAPTER = Path(__file__).resolve().parents[2] / "docs" / "networks.md"


def test_every_kind_and_key_is_explained() -> None:
    """A kind's row of the reference names all of its keys and nothing else."""
    chapter = CHAPTER.with_name("keys.md").read_text().split("### Layers")[1].split("\n## ")[0]
    rows = [line.split("|")[1:3] for line in chapter.splitlines() if line.startswith("| `")]
    named = {kind.strip(" `"): set(re.findall(r"`(\w+)`(?: = `[^`]*`)?", keys)) for kind, keys in rows}
    named.pop("kind")
    assert named == {kind: set(layer.__struct_fields__) for kind, layer in LAYERS.items()}


def test_the_chapter_s_example_is_a_network() -> None:
    example = CHAPTER.read_text().split("```toml\n")[1].split("```")[0]
    assert design_of(configuration.resolve(tomllib.loads(example))).layers[-1] == FullyConnectedOptions(gain=1.0)
