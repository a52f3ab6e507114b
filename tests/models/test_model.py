"""What every model must do (models/model.py), whatever it is made of.

Another implementation is one more line of MODELS. Here none has dropout, so that training and evaluation have one loss.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.models.design import Design
from mpitrain.models.layers.convolution import ConvolutionOptions
from mpitrain.models.layers.fully_connected import FullyConnectedOptions
from mpitrain.models.layers.local_response_norm import LocalResponseNormOptions
from mpitrain.models.layers.max_pool import MaxPoolOptions
from mpitrain.models.layers.sigmoid import SigmoidOptions
from mpitrain.models.model import Draws, Model
from mpitrain.models.network import build, network, network_of_layers
from mpitrain.sampling.batch import Batch

from .gradients import directional_error
from .torch_modules import TORCH_MODELS

LISTED = [
    ConvolutionOptions(4, 3, pad=1, pool=2),
    SigmoidOptions(),
    LocalResponseNormOptions(3, scale=0.2),
    MaxPoolOptions(2, 1),
    FullyConnectedOptions(),
]

MODELS: dict[str, Callable[[], Model]] = {
    "images": lambda: build("digits-cnn", (8, 8, 1), 7, width=0.5),
    "frames": lambda: build("strom2015-dnn", (4, 5), 7, width=0.01, output="logistic"),
    "layers": lambda: network(Design(LISTED), (6, 6, 2), 7),
    **TORCH_MODELS,
}

Same = Callable[[Array, Array], None]
ON_GPU = [f"{name}-gpu" for name in TORCH_MODELS]  # these tests want arrays of the host, see hosted.py


@pytest.fixture(params=[*MODELS, *ON_GPU])
def make(request: pytest.FixtureRequest) -> Callable[[], Model]:
    if request.param in ON_GPU:
        request.getfixturevalue("on_gpu")
    return MODELS[request.param.removesuffix("-gpu")]


@pytest.fixture
def model(make: Callable[[], Model]) -> Model:
    return make()


@pytest.fixture
def same(request: pytest.FixtureRequest) -> Same:
    """Asserts equal bits. Where a GPU was, PyTorch's convolutions, on its processor too, repeated all but the last."""
    if request.config.getoption("--device") == "gpu" and "torch" in request.node.callspec.params["make"]:
        return partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14)
    return np.testing.assert_array_equal


def batch_for(model: Model, n: int = 5, dtype: type = np.float64) -> Batch:
    rng = np.random.default_rng(3)
    inputs = rng.standard_normal((n, *model.input_shape)).astype(dtype)
    return Batch(inputs, rng.integers(0, model.classes, n).astype(np.int32))


def gradient_of(model: Model, parameters: Array, batch: Batch) -> tuple[float, Array]:
    """A gradient and its loss; elements that are not written stay NaN."""
    gradient = np.full_like(parameters, np.nan)
    loss = model.loss_and_gradient(parameters, gradient, batch, Draws(np.random.default_rng(7)))
    return float(loss), gradient


def mean_loss(model: Model, z: Array, targets: Array) -> float:
    """Cross-entropy of outputs z [n, classes], as its formula says."""
    z, chosen = z.astype(np.float64), z[np.arange(len(z)), targets]
    each = np.log(np.exp(z).sum(axis=1)) if model.output == "softmax" else np.log1p(np.exp(z)).sum(axis=1)
    return float((each - chosen).mean())


def test_the_description(model: Model) -> None:
    assert model.classes == 7 and all(length > 0 for length in model.input_shape)
    assert model.layout.size == sum(parameter.size for parameter in model.layout.parameters) > 0
    assert model.name and model.output in ("softmax", "logistic")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_shapes_and_dtypes(model: Model, dtype: type) -> None:
    parameters, batch = model.initial(1, dtype), batch_for(model, dtype=dtype)
    assert parameters.shape == (model.layout.size,) and parameters.dtype == dtype
    assert model.outputs(parameters, batch.inputs).shape == (5, 7)
    loss, gradient = gradient_of(model, parameters, batch)
    assert np.isfinite(loss) and np.isfinite(gradient).all()


def test_the_gradient_is_that_of_central_differences(model: Model) -> None:
    batch = batch_for(model)
    parameters = model.initial(1, np.float64) + 0.02 * np.random.default_rng(2).standard_normal(model.layout.size)
    gradient = gradient_of(model, parameters, batch)[1]
    assert directional_error(lambda x: gradient_of(model, x, batch)[0], parameters, gradient) < 1e-5


def test_parts_of_the_gradient_are_announced_once_and_final(model: Model, same: Same) -> None:
    parameters, batch = model.initial(1, np.float64), batch_for(model)
    expected = gradient_of(model, parameters, batch)[1]
    gradient, when_ready = np.full_like(parameters, np.nan), np.full_like(parameters, np.nan)
    times = np.zeros(parameters.size, int)

    def on_ready(part: slice) -> None:
        times[part] += 1
        when_ready[part] = gradient[part]
        gradient[part] = np.nan  # as a rule may that works in place

    model.loss_and_gradient(parameters, gradient, batch, Draws(np.random.default_rng(7)), on_ready)
    assert (times == 1).all()
    same(when_ready, expected)
    assert np.isnan(gradient).all()


def test_the_initial_vector_depends_on_the_seed_only(model: Model, make: Callable[[], Model]) -> None:
    again = make()
    first = model.initial(1)
    gradient_of(model, model.initial(5, np.float64), batch_for(model))
    for repeated in (model.initial(1), again.initial(1), model.initial(1, np.float64).astype(np.float32)):
        np.testing.assert_array_equal(first, repeated)
    assert (first != model.initial(2)).any()


def test_outputs_give_the_evaluated_loss_and_errors(model: Model) -> None:
    parameters, batch = model.initial(1, np.float64), batch_for(model, 9)
    z = model.outputs(parameters, batch.inputs).copy()
    loss, errors = model.evaluate(parameters, batch)
    assert loss == pytest.approx(9 * mean_loss(model, z, batch.targets), rel=1e-10)
    assert errors == (z.argmax(axis=1) != batch.targets).sum() > 0
    right = Batch(batch.inputs, z.argmax(axis=1).astype(np.int32))
    assert model.evaluate(parameters, right)[1] == 0


def test_training_and_evaluation_have_one_loss(model: Model) -> None:
    if model.holds_buffers:
        pytest.skip("its statistics differ between training and evaluation")
    parameters, batch = model.initial(1, np.float64), batch_for(model)
    assert model.evaluate(parameters, batch)[0] / 5 == pytest.approx(
        gradient_of(model, parameters, batch)[0], rel=1e-10
    )


def test_arguments_are_left_alone(model: Model) -> None:
    parameters, batch = model.initial(1, np.float64), batch_for(model)
    copies = [array.copy() for array in (parameters, *batch)]
    gradient_of(model, parameters, batch)
    model.evaluate(parameters, batch)
    model.outputs(parameters, batch.inputs)
    for array, copy in zip((parameters, *batch), copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_vectors_may_change_in_place_and_be_others(model: Model, same: Same) -> None:
    """Protocols alternate between a replica, a look-ahead point and a centre."""
    batch, first, second = batch_for(model), model.initial(1, np.float64), model.initial(2, np.float64)
    expected = gradient_of(model, second, batch)[1]
    gradient_of(model, first, batch)
    same(gradient_of(model, second, batch)[1], expected)
    first[:] = second
    same(gradient_of(model, first, batch)[1], expected)


def test_minibatches_of_any_size_follow_one_another(model: Model) -> None:
    parameters, whole = model.initial(1, np.float64), batch_for(model, 6)
    for n in (6, 1, 6):
        some = Batch(whole.inputs[:n], whole.targets[:n])
        assert model.outputs(parameters, some.inputs).shape == (n, 7)
        if n > 1:  # statistics of one example are none
            assert np.isfinite(gradient_of(model, parameters, some)[1]).all()


def test_what_a_model_lacks_is_said_with_its_name() -> None:
    plain: Any = SimpleNamespace(name="model.import = 'resnet.py:build'")
    with pytest.raises(
        BadInput, match=r"^model\.import = 'resnet\.py:build': hybrid needs fully connected layers that"
    ):
        network_of_layers(plain, "split", "hybrid")
    with pytest.raises(BadInput, match="'layerwise' needs layers of this program's own"):
        network_of_layers(plain, "layers", "pretraining.method = 'layerwise'")


def test_a_network_is_taken_for_what_it_is() -> None:
    network = MODELS["images"]()
    assert network_of_layers(network, "layers", "export") is network
    assert network.name == "model.preset = 'digits-cnn'"
