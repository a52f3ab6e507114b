"""The presets against the papers' sizes, and their gradients against central differences."""

from math import log

import numpy as np
import pytest
from msgspec.structs import replace

from mpitrain.algorithms.optimizers.sgd import krizhevsky
from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.models.design import Design
from mpitrain.models.layer import LayerOptions
from mpitrain.models.layers.convolution import Convolution, ConvolutionOptions
from mpitrain.models.layers.fully_connected import FullyConnected, FullyConnectedOptions
from mpitrain.models.layers.local_response_norm import LocalResponseNorm
from mpitrain.models.model import Draws
from mpitrain.models.network import Network, build, network
from mpitrain.models.presets import PRESETS, design
from mpitrain.sampling.batch import Batch
from mpitrain.sampling.rng import stream

from .gradients import directional_error

#: Input shape, and a width at which central differences are quick.
SCALED = {
    "digits-cnn": ((8, 8, 1), 0.5),
    "chan2014-cnn": ((23, 23), 0.05),
    "chan2014-dnn": ((23, 23), 0.02),
    "zhang2013-dnn": ((11, 42), 0.01),
    "easgd-cifar": ((28, 28, 3), 0.1),
    "easgd-imagenet": ((221, 221, 3), 0.02),
    "krizhevsky2014": ((224, 224, 3), 0.03),
    "strom2015-dnn": ((17, 20), 0.01),
}


def test_every_preset_is_tested() -> None:
    assert set(SCALED) == set(PRESETS)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("output", ["softmax", "logistic"])
def test_gradient_is_that_of_central_differences(preset: str, output: str) -> None:
    shape, width = SCALED[preset]
    network = build(preset, shape, 7, width=width, output=output, l2=1e-2)
    rng = np.random.default_rng(2)
    batch = Batch(rng.standard_normal((2, *network.input_shape)), np.array([6, 1], np.int32))
    parameters = network.initial(4, np.float64) + 0.02 * rng.standard_normal(network.layout.size)
    gradient = np.full_like(parameters, np.nan)
    network.loss_and_gradient(parameters, gradient, batch, Draws(np.random.default_rng(3)))

    def regularised(vector: Array) -> float:
        loss = network.loss_and_gradient(vector, np.empty_like(vector), batch, Draws(np.random.default_rng(3)))
        views = network.layout.views(vector).items()
        fined = [view for name, view in views if network.l2_biases or name.endswith("weights")]
        return loss + 1e-2 / 2 * sum(float((w**2).sum()) for w in fined)

    assert directional_error(regularised, parameters, gradient) < 1e-5


def weight_shapes(network: Network) -> list[tuple[int, ...]]:
    return [p.shape for p in network.layout.parameters if p.name.endswith("weights")]


def feature_maps(network: Network) -> list[tuple[int, ...]]:
    return [layer.output_shape for layer in network.layers if isinstance(layer, Convolution)]


def test_easgd_cifar() -> None:
    network = build("easgd-cifar", (28, 28, 3), 10)
    assert weight_shapes(network) == [(5, 5, 3, 64), (5, 5, 64, 128), (3, 3, 128, 64), (256, 256), (256, 10)]
    assert feature_maps(network) == [(12, 12, 64), (4, 4, 128), (2, 2, 64)]
    assert (network.l2, network.l2_biases) == (1e-4, True)  # λ/2·‖x‖², x all parameters
    assert all(p.initial == ("constant", 0.0) for p in network.layout.parameters if p.name.endswith("bias"))


def test_easgd_imagenet() -> None:
    network = build("easgd-imagenet", (221, 221, 3), 1000)
    assert feature_maps(network) == [(36, 36, 96), (16, 16, 256), (14, 14, 384), (13, 13, 384), (6, 6, 256)]
    assert weight_shapes(network)[5:] == [(9216, 4096), (4096, 4096), (4096, 1000)]
    assert (network.l2, network.l2_biases) == (1e-5, True)
    assert not build("easgd-imagenet", (221, 221, 3), 1000, l2_biases=False).l2_biases
    assert all(p.initial == ("constant", 0.1) for p in network.layout.parameters if p.name.endswith("bias"))


def test_krizhevsky2014() -> None:
    network = build("krizhevsky2014", (224, 224, 3), 1000)
    assert np.prod(network.layers[network.split - 1].output_shape) == 9216
    assert [shape[-1] for shape in weight_shapes(network)] == [64, 192, 384, 256, 256, 4096, 4096, 1000]
    assert feature_maps(network) == [(55, 55, 64), (27, 27, 192), (13, 13, 384), (13, 13, 256), (6, 6, 256)]
    # 0.2 % more than the two towers of Krizhevsky et al. 2012, which have 60 965 224.
    assert network.layout.size == pytest.approx(1.002 * 60_965_224, rel=1e-3)
    assert network.loss.name == "logistic"


def test_krizhevsky2014_starts_from_the_authors_values() -> None:
    """Standard deviations and biases of his released files; the outputs' -7 is -ln(999) here."""
    network = build("krizhevsky2014", (224, 224, 3), 1000)
    values = [p.initial[1] for p in network.layout.parameters]
    assert values[::2] == [0.01, 0.01, 0.03, 0.03, 0.03, 0.01, 0.01, 0.01]
    assert values[1:-1:2] == [0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0] and values[-1] == -log(999)
    order = "conv1 norm1 pool1 relu1 conv2 relu2 norm2 pool2 conv3 relu3 conv4 relu4 conv5 relu5"
    assert " ".join(layer.name for layer in network.layers[: network.split]) == order
    assert {layer.options.scale for layer in network.layers if isinstance(layer, LocalResponseNorm)} == {1e-4 / 5}
    quarter = build("krizhevsky2014", (224, 224, 3), 1000, width=0.25)
    assert [p.initial[1] for p in quarter.layout.parameters[::2]] == [0.01, 0.02, 0.06, 0.06, 0.06, 0.02, 0.02, 0.02]
    softmax = build("krizhevsky2014", (224, 224, 3), 1000, output="softmax", width=0.01)
    assert softmax.layout.parameters[-1].initial == ("constant", 0.0)


@pytest.mark.parametrize(("fourth", "more"), [(256, 0.002), (384, 0.014)])
def test_krizhevsky2014_s_fourth_convolution_fits_the_text_s_number_of_parameters(fourth: int, more: float) -> None:
    """0.2 % more than the model of two towers (2012), whose second, fourth and fifth convolution have two groups."""
    tower = design("krizhevsky2014")
    place = [at for at, layer in enumerate(tower.layers) if isinstance(layer, ConvolutionOptions)][3]
    tower.layers[place] = replace(tower.layers[place], filters=fourth)
    towers: list[LayerOptions] = [
        ConvolutionOptions(96, 11, stride=4, pad=2, pool=3, pool_stride=2),
        ConvolutionOptions(256, 5, pad=2, pool=3, pool_stride=2, groups=2),
        ConvolutionOptions(384, 3, pad=1),
        ConvolutionOptions(384, 3, pad=1, groups=2),
        ConvolutionOptions(256, 3, pad=1, pool=3, pool_stride=2, groups=2),
        *(FullyConnectedOptions(units) for units in (4096, 4096, 1000)),
    ]
    one, two = (network(made, (224, 224, 3), 1000).layout.size for made in (tower, Design(towers)))
    assert one / two - 1 == pytest.approx(more, abs=5e-4)


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_logistic_outputs_begin_at_one_in_so_many_classes(classes: int) -> None:
    """The loss of hidden units that are all 0 is then ln C + (C − 1)·ln(C/(C − 1)), which is near ln C + 1."""
    network = build("strom2015-dnn", (3,), classes, width=0.01, output="logistic")
    parameters = network.initial(1, np.float64)
    network.layout.views(parameters)["fc6.weights"][:] = 0
    loss, _ = network.evaluate(parameters, Batch(np.ones((1, 3)), np.zeros(1, np.int32)))
    assert loss == pytest.approx(log(classes) + (classes - 1) * log(classes / (classes - 1)), rel=1e-9)


def test_krizhevsky2014_trains_by_the_recipe_s_rule() -> None:
    """1000 classes from the first step on; benchmarks/hybrid/logistic.py shows that ten of them are learnt."""
    network = build("krizhevsky2014", (67, 67, 3), 1000, width=0.02)
    rng = np.random.default_rng(0)
    patterns, size = rng.standard_normal((1000, 4, 4, 3)), 64
    theta = network.initial(1)
    velocity, gradient, scratch = np.zeros_like(theta), np.zeros_like(theta), np.empty_like(theta)
    losses = []
    for step in range(60):
        targets = rng.integers(1000, size=size)
        images = np.repeat(np.repeat(patterns[targets], 17, 1), 17, 2)[:, :67, :67].astype(np.float32)
        batch = Batch(images, targets.astype(np.int32))
        losses.append(float(network.loss_and_gradient(theta, gradient, batch, Draws(stream(1, "dropout", step)))))
        for p in network.layout.parameters:
            part, eta = network.layout.slices[p.name], 0.01 * size / 128
            own = {"eta": eta, "decay": 5e-4} if p.decay else {"eta": 2 * eta, "decay": 0.0}
            krizhevsky(theta[part], velocity[part], gradient[part], scratch[part], mu=0.9, **own)
    assert np.isfinite(losses).all() and max(losses) < 1.1 * losses[0]
    assert np.mean(losses[50:]) < 8.0


@pytest.mark.parametrize(("hidden", "millions"), [(5, 14.6), (8, 21.7)])
def test_strom2015(hidden: int, millions: float) -> None:
    network = build("strom2015-dnn", (17, 20), 3000, hidden_layers=hidden)
    assert network.layout.size / 1e6 == pytest.approx(millions, abs=0.05)
    assert network.loss.name == "softmax"


def test_zhang2013() -> None:
    shapes = weight_shapes(build("zhang2013-dnn", (11, 42), 10217))
    assert shapes == [(462, 2048), *[(2048, 2048)] * 4, (2048, 10217)]


def test_chan2014_baseline() -> None:
    shapes = weight_shapes(build("chan2014-dnn", (23, 23), 1998))
    assert shapes == [(529, 1024), *[(1024, 1024)] * 4, (1024, 1998)]


@pytest.mark.parametrize("preset", ["chan2014-cnn", "chan2014-dnn", "easgd-imagenet"])
def test_all_biases_begin_at_a_tenth(preset: str) -> None:
    """As the papers have it; logistic outputs begin at 1/classes all the same."""
    shape, width = SCALED[preset]

    def biases(**options: str) -> list[tuple[str, float]]:
        network = build(preset, shape, 11, width=width, **options)
        return [p.initial for p in network.layout.parameters if p.name.endswith("bias")]

    assert set(biases()) == {("constant", 0.1)}
    assert biases(output="logistic") == [*biases()[:-1], ("constant", -log(10))]


def test_split_is_the_first_fully_connected_layer() -> None:
    network = build("digits-cnn", (8, 8, 1), 10)
    kinds = [isinstance(layer, FullyConnected) for layer in network.layers]
    assert kinds.index(True) == network.split
    assert build("strom2015-dnn", (20,), 10, width=0.01).split == 0


@pytest.mark.parametrize("preset", PRESETS)
def test_a_hundredth_of_a_percent_of_the_width_leaves_one_unit(preset: str) -> None:
    network = build(preset, SCALED[preset][0], 5, width=1e-4)
    assert {shape[-1] for shape in weight_shapes(network)} == {1, 5}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "easgd-cifer"}, "'easgd-cifar'"),
        ({"preset": "resnet"}, "unknown 'resnet'; known: digits-cnn, .*, krizhevsky2014"),
        (
            {"preset": "digits-cnn", "input_shape": (1, 40)},
            "windows of frames of 1 x 40: .*; for frames: chan2014-cnn, ",
        ),
        ({"hidden_layers": 3}, "model.hidden_layers"),
        ({"input_shape": (7, 28, 3)}, "does not fit"),
        ({"input_shape": (400,)}, "wants images"),
        ({"classes": 0}, "classes"),
    ],
)
def test_bad_input(arguments: dict, message: str) -> None:
    good = {"preset": "easgd-cifar", "input_shape": (28, 28, 3), "classes": 10}
    with pytest.raises(BadInput, match=message):
        build(**(good | arguments))
