"""Networks of our own layers computed by PyTorch against NumPy."""

import numpy as np
import pytest

from mpitrain.models.design import Design
from mpitrain.models.layers.convolution import ConvolutionOptions as Convolve
from mpitrain.models.layers.dropout import DropoutOptions
from mpitrain.models.layers.fully_connected import FullyConnectedOptions as Connect
from mpitrain.models.layers.group_norm import GroupNormOptions
from mpitrain.models.layers.local_response_norm import LocalResponseNormOptions
from mpitrain.models.layers.max_pool import MaxPoolOptions as Pool
from mpitrain.models.layers.sigmoid import SigmoidOptions
from mpitrain.models.network import build, network
from mpitrain.models.presets import PRESETS
from mpitrain.sampling.batch import Batch

from .torch_modules import WHY

torch = pytest.importorskip("torch", reason=WHY)

from mpitrain.models.torch.layers import TorchNetwork  # noqa: E402

SHAPES = {
    "digits-cnn": (8, 8, 1),
    "easgd-cifar": (28, 28, 3),
    "easgd-imagenet": (221, 221, 3),
    "krizhevsky2014": (224, 224, 3),
}
LAYERS = [
    Convolve(5, 3, 2, 1),
    LocalResponseNormOptions(3, 0.1),
    GroupNormOptions(5),
    Pool(3, 2),
    SigmoidOptions(),
    Convolve(6, 2, pad=1),
    Convolve(4, 2, pool=2, groups=2),
    Connect(6, columns=2),
    Connect(9, columns=3),
    Connect(),
]


FIRST = [GroupNormOptions(1), Convolve(4, 3, 1, 1), Connect()]
LISTS = {"list": (LAYERS, (17, 19, 2)), "grey": (FIRST, (8, 8, 1)), "coloured": (FIRST, (8, 8, 3))}


@pytest.mark.parametrize("name", [*PRESETS, *LISTS])
def test_outputs_and_gradients_equal_those_of_numpy(name: str) -> None:
    """In float64, with the same vector; then one of float32 to its accuracy."""
    if name in LISTS:
        layers, shape = LISTS[name]
        ours = network(Design(layers, "softmax", 0.01), shape, 7)
    else:
        ours = build(name, SHAPES.get(name, (23, 23)), 7, width=0.05, l2=0.01, dropout=0.0)
    theirs = TorchNetwork(ours)
    assert [(p.name, p.shape) for p in theirs.layout.parameters] == named(theirs)
    for dtype, rtol in ((np.float64, 1e-9), (np.float32, 2e-4)):
        theta = ours.initial(3, dtype)
        np.testing.assert_array_equal(theta, theirs.initial(3, dtype))
        rng = np.random.default_rng(1)
        batch = Batch(rng.standard_normal((3, *ours.input_shape)).astype(dtype), np.array([0, 6, 2], np.int32))
        expected, found = np.empty_like(theta), np.full_like(theta, np.nan)
        loss, other = (float(m.loss_and_gradient(theta, g, batch)) for m, g in ((ours, expected), (theirs, found)))
        assert loss == pytest.approx(other, rel=rtol)
        assert np.linalg.norm(expected - found) <= rtol * np.linalg.norm(expected)
        z = ours.outputs(theta, batch.inputs).copy()
        np.testing.assert_allclose(theirs.outputs(theta, batch.inputs), z, rtol=0, atol=rtol * np.abs(z).max())
        assert ours.evaluate(theta, batch)[0] == pytest.approx(theirs.evaluate(theta, batch)[0], rel=rtol)


def test_group_norm_is_that_of_pytorch() -> None:
    """Outputs and all gradients of torch.nn.GroupNorm, with scales and biases that are not 1 and 0."""
    rng, layer = np.random.default_rng(3), GroupNormOptions(3, 1e-3).make()
    x, dy, (scale, bias) = rng.standard_normal((2, 4, 5, 9)), rng.standard_normal((2, 4, 5, 9)), rng.random((2, 9))
    layer.connect(x.shape[1:], "norm")
    views, gradients = {"norm.scale": scale, "norm.bias": bias}, {"norm.scale": np.empty(9), "norm.bias": np.empty(9)}
    theirs, images = torch.nn.GroupNorm(3, 9, 1e-3).double(), torch.from_numpy(x).permute(0, 3, 1, 2).requires_grad_()
    theirs.weight.data, theirs.bias.data = torch.from_numpy(scale), torch.from_numpy(bias)
    expected = theirs(images)
    np.testing.assert_allclose(layer.forward(views, x), expected.permute(0, 2, 3, 1).detach(), rtol=1e-12, atol=1e-12)
    expected.backward(torch.from_numpy(dy).permute(0, 3, 1, 2))
    dx = layer.backward(views, gradients, dy.copy())
    assert images.grad is not None and theirs.weight.grad is not None and theirs.bias.grad is not None
    np.testing.assert_allclose(dx, images.grad.permute(0, 2, 3, 1), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(gradients["norm.scale"], theirs.weight.grad, rtol=1e-12)
    np.testing.assert_allclose(gradients["norm.bias"], theirs.bias.grad, rtol=1e-12)


@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_dropout_scaled_in_evaluation(rate: float) -> None:
    layer, ones = DropoutOptions(rate, "evaluation").make(), torch.ones(100, 100)
    trained = layer.torch(torch, ones, {}, True)
    assert abs(float(trained.mean()) - (1 - rate)) < 0.03 and set(trained.unique().tolist()) <= {0.0, 1.0}
    torch.testing.assert_close(layer.torch(torch, ones, {}, False), (1 - rate) * ones)


def named(model: TorchNetwork) -> list[tuple[str, tuple[int, ...]]]:
    """The module's own names and shapes."""
    return [(name, tuple(p.shape)) for name, p in model.module.named_parameters()]
