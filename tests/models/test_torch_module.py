"""PyTorch modules as models, against PyTorch itself; test_model.py has what they share with other models."""

import copy
import ctypes
import itertools
import random
import resource
import sys
from collections.abc import Callable

import numpy as np
import pytest

from mpitrain.data.own import OwnPart
from mpitrain.errors import BadInput
from mpitrain.monitoring.evaluation import Measuring
from mpitrain.sampling.batch import Batch
from mpitrain.sampling.rng import stream

from .torch_modules import TORCH_MODELS, WHY

torch = pytest.importorskip("torch", reason=WHY)

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from mpitrain.flat import Layout, Parameter  # noqa: E402
from mpitrain.models.model import Consumer, Draws  # noqa: E402
from mpitrain.models.torch.binding import parts, pieces  # noqa: E402
from mpitrain.models.torch.module import TorchModel  # noqa: E402

from .torch_modules import Residual, Tied  # noqa: E402


def batches(shape: tuple[int, ...], count: int, n: int = 6, classes: int = 7) -> list[Batch]:
    rng = np.random.default_rng(5)
    return [Batch(rng.standard_normal((n, *shape)), rng.integers(0, classes, n).astype(np.int32)) for _ in range(count)]


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("kind", ["images", "frames"])
def test_fifty_steps_equal_those_of_pytorch(kind: str, biases: bool) -> None:
    """With torch.optim.SGD, weight decay on matrices and filters alone or on everything, in float64."""
    make: Callable[[], nn.Module] = (lambda: Residual(7)) if kind == "images" else lambda: Tied(20, 7)
    shape = (8, 8, 1) if kind == "images" else (4, 5)
    model = TorchModel(lambda seed: make(), shape, 7, l2=0.01, l2_biases=biases)
    theta, gradient = model.initial(1, np.float64), np.empty(model.layout.size)
    plain = model.standalone(theta).train()
    matrices = [p for p in plain.parameters() if p.requires_grad and p.ndim > 1]
    others = [p for p in plain.parameters() if p.requires_grad and p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.01 * biases}]
    optimizer = torch.optim.SGD(groups, lr=0.1)

    def step(part: slice) -> None:  # while the backward pass goes on, as the protocols do
        theta[part] -= 0.1 * gradient[part]

    for batch in batches(model.input_shape, 50):
        ours = model.loss_and_gradient(theta, gradient, batch, Draws(stream(1, "dropout")), step)
        optimizer.zero_grad()
        x = torch.from_numpy(batch.inputs)
        outputs = plain(x.permute(0, 3, 1, 2) if kind == "images" else x)
        loss = functional.cross_entropy(outputs, torch.from_numpy(batch.targets).long())
        loss.backward()
        optimizer.step()
        assert ours == pytest.approx(loss.item(), abs=1e-6)
    views = model.layout.views(theta)
    for name, p in plain.named_parameters():
        if name not in ("frozen", "unused"):
            np.testing.assert_allclose(views[name], p.detach().numpy(), rtol=0, atol=1e-6)


def test_tied_unused_and_frozen_parameters() -> None:
    model = TORCH_MODELS["torch-frames"]()
    names = [p.name for p in model.layout.parameters]
    assert "middle.weight" in names and "again.weight" not in names and "frozen" not in names
    theta = model.initial(1)
    gradient = np.full_like(theta, np.nan)
    model.loss_and_gradient(theta, gradient, batches((4, 5), 1)[0]._replace(inputs=np.ones((6, 4, 5), np.float32)))
    assert not model.layout.views(gradient)["unused"].any()
    assert model.kept(theta).keys() == {"frozen"}
    other = TorchModel(lambda seed: Tied(20, 7), (4, 5), 7, seed=9)
    assert (other.kept(theta)["frozen"] != model.kept(theta)["frozen"]).all()
    other.restore(model.kept(theta), theta)
    ones = np.ones((2, 4, 5), np.float32)
    np.testing.assert_array_equal(model.outputs(theta, ones), other.outputs(theta, ones))


def test_small_neighbours_are_reported_together() -> None:
    layout = Layout([Parameter(n, (size,), ("constant", 0.0)) for n, size in zip("abcd", (50, 100, 3, 3), strict=True)])
    assert parts(layout, 100) == [(slice(50, 156), [1, 2, 3]), (slice(0, 50), [0])]
    assert [numbers for _, numbers in parts(layout, 1)] == [[3], [2], [1], [0]]
    assert pieces(layout, [1, 2, 3], 100) == [[2, 3], [1]]


class Large(nn.Module):
    """With parameters that are looked after while the backward pass goes on; one of them is not used."""

    def __init__(self, reentrant: bool = False) -> None:
        super().__init__()
        self.first, self.last, self._reentrant = nn.Linear(4, 200), nn.Linear(200, 3), reentrant
        self.middle, self.unused = nn.Linear(200, 200), nn.Parameter(torch.ones(200, 200))

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        y = self.first(x.flatten(1))
        for _ in range(2):
            y = checkpoint(self.middle, y, use_reentrant=True) if self._reentrant else self.middle(y)
        return self.last(y)


@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_a_consumer_gets_the_gradients_that_others_find_in_the_vector(l2: float) -> None:
    """Each once, and the large one from where it is."""
    model = TorchModel(lambda seed: Large(), (2, 2), 3, l2=l2)
    theta, batch = model.initial(1, np.float64), batches((2, 2), 1, classes=3)[0]
    expected, vector, found = (np.full_like(theta, np.nan) for _ in range(3))
    model.loss_and_gradient(theta, expected, batch)

    def use(part: slice, gradient: np.ndarray) -> None:
        assert np.isnan(found[part]).all()
        found[part] = gradient

    model.loss_and_gradient(theta, vector, batch, None, Consumer(vector, use))
    np.testing.assert_array_equal(found, expected)
    views = model.layout.views(vector)
    assert np.isnan(views["middle.weight"]).all() and not np.isnan(views["last.weight"]).any()
    assert (model.layout.views(found)["unused"] == l2).all()


def test_a_gradient_in_several_pieces_is_refused() -> None:
    with pytest.raises(BadInput, match="reentrant checkpoint"):
        TorchModel(lambda seed: Large(reentrant=True), (2, 2), 3)


def test_a_module_that_has_gradients_already() -> None:
    """As after steps that were taken with it before."""
    sizes = (4, 200), (200, 200), (200, 200), (200, 3)

    def make(stepped: bool) -> nn.Module:
        module = nn.Sequential(nn.Flatten(), *(nn.Linear(*each) for each in sizes))
        if stepped:
            module(torch.ones(2, 4)).sum().backward()
        return module

    models = [TorchModel(lambda seed, stepped=stepped: make(stepped), (2, 2), 3) for stepped in (True, False)]
    theta, batch = models[0].initial(1, np.float64), batches((2, 2), 1, classes=3)[0]
    gradients = np.empty((2, theta.size))
    for model, gradient in zip(models, gradients, strict=True):
        model.loss_and_gradient(theta, gradient, batch)
    np.testing.assert_array_equal(*gradients)


@pytest.mark.parametrize("first", [0, 2, 3], ids=lambda first: f"{first} frozen layers")
@pytest.mark.parametrize("channels", [1, 3])
def test_group_normalisation_of_what_needs_no_gradient(channels: int, first: int) -> None:
    """PyTorch's backward pass crashes on it. The gradients are those of memory with the channels first; what is frozen
    costs no backward pass."""
    backwards: list[str] = []

    def make() -> nn.Module:
        norms = nn.GroupNorm(1, channels), nn.GroupNorm(2, 4)
        module = nn.Sequential(norms[0], nn.Conv2d(channels, 4, 3), norms[1], nn.Flatten(), nn.Linear(144, 3))
        for number, layer in enumerate(module[:3]):
            layer.requires_grad_(number >= first)
        module[1].register_full_backward_hook(lambda *told: backwards.append("convolution"))
        return module

    model = TorchModel(lambda seed: make(), (8, 8, channels), 3)
    theta, batch = model.initial(1, np.float64), batches((8, 8, channels), 1, classes=3)[0]
    gradient, plain = np.empty_like(theta), model.standalone(theta).train()
    model.loss_and_gradient(theta, gradient, batch)
    assert bool(backwards) == (first == 0)
    x = torch.from_numpy(batch.inputs).permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)
    functional.cross_entropy(plain(x.requires_grad_()), torch.from_numpy(batch.targets).long()).backward()
    expected = torch.cat([p.grad.flatten() for p in plain.parameters() if p.requires_grad])
    np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-12)


class Detached(nn.Module):
    """Its first layer's gradient reads the last weights after theirs is final."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 3, bias=False), nn.Linear(3, 3, bias=False)

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        y = self.first(x.flatten(1)) @ self.last.weight.detach()
        return self.last(y)


def test_parameters_that_backward_still_reads_are_reported_at_its_end() -> None:
    model = TorchModel(lambda seed: Detached(), (2, 2), 3)
    theta, batch = model.initial(1), batches((2, 2), 1, classes=3)[0]
    batch = Batch(batch.inputs.astype(np.float32), batch.targets)
    expected, gradient = np.empty_like(theta), np.empty_like(theta)
    model.loss_and_gradient(theta, expected, batch)
    model.loss_and_gradient(theta, gradient, batch, None, lambda part: theta[part].fill(np.nan))
    np.testing.assert_array_equal(gradient, expected)


class Drawing(nn.Module):
    """It draws from all three generators that have no owner, in training and in evaluation; `only` from one."""

    def __init__(self, only: str = "") -> None:
        super().__init__()
        self.last, self._only = nn.Linear(20, 7), only

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        draws = {"torch": torch.rand(()).item(), "numpy": np.random.rand(), "python": random.random()}  # noqa: NPY002
        return self.last(x.flatten(1)) * sum(draw for name, draw in draws.items() if self._only in name)


@pytest.mark.parametrize("only", ["dropout", "torch", "numpy", "python"])
def test_draws_depend_on_the_minibatch_and_the_share(only: str) -> None:
    model = TorchModel(lambda seed: Tied(20, 7, dropout=0.5) if only == "dropout" else Drawing(only), (4, 5), 7)
    theta, batch = model.initial(1, np.float64), batches((4, 5), 1)[0]

    def loss(start: int, share: tuple[int, int] | None = None) -> float:
        gradient = np.empty_like(theta)
        return model.loss_and_gradient(theta, gradient, batch, Draws(stream(1, "dropout", 0, start), share))

    first = loss(0)
    torch.rand(3), np.random.rand(3), random.random()  # whatever else draws  # noqa: NPY002
    assert loss(0) == first == loss(0, (0, 12)) and first != loss(6) and first != loss(0, (6, 12))
    losses = {model.evaluate(theta, batch)[0] for _ in range(2)}
    assert len(losses) == 1


def test_the_generators_draw_different_numbers() -> None:
    """Though NumPy's and PyTorch's are the same one, and PyTorch's is seeded as it was before others were."""
    model = TorchModel(lambda seed: Drawing(), (4, 5), 7)
    theta, batch = model.initial(1, np.float64), batches((4, 5), 1)[0]
    model.loss_and_gradient(theta, np.empty_like(theta), batch, Draws(stream(1, "dropout", 3)))
    raw = {int(np.random.get_state()[1][0]), int(torch.get_rng_state()[24:28].numpy().view("<u4")[0])}  # noqa: NPY002
    assert len(raw) == 2 and torch.initial_seed() == int(stream(1, "dropout", 3).integers(1 << 32))


def test_statistics_are_those_of_the_evaluated_weights() -> None:
    """The mean over minibatches of mean and unbiased variance of what enters a layer, with these weights; training does
    not change them, and they are saved with the weights that they were measured for alone."""
    model = TORCH_MODELS["torch-images"]()
    theta, some = model.initial(1, np.float64), batches((8, 8, 1), 3)
    for number, batch in enumerate(some):
        model.measure(theta, batch.inputs, number, len(some))
    weights = torch.from_numpy(model.layout.views(theta)["first.weight"].copy())
    entering = [functional.conv2d(torch.from_numpy(b.inputs).permute(0, 3, 1, 2), weights, padding=1) for b in some]
    for key, moment in (("running_mean", torch.mean), ("running_var", torch.var)):
        expected = torch.stack([moment(x, (0, 2, 3)) for x in entering]).mean(0)
        np.testing.assert_allclose(model.kept(theta)[f"norms.0.{key}"], expected.numpy(), rtol=1e-12)
    before = model.outputs(theta, some[0].inputs).copy()
    model.loss_and_gradient(theta + 1, np.empty_like(theta), some[1], Draws(stream(1, "dropout")))
    np.testing.assert_array_equal(model.outputs(theta, some[0].inputs), before)
    assert not model.kept(theta + 1)
    other = TORCH_MODELS["torch-images"]()
    other.restore(model.kept(theta), theta)
    np.testing.assert_array_equal(other.outputs(theta, some[0].inputs), before)
    alone = model.standalone(theta)
    assert alone.norms[0].momentum == 0.1 and not alone.training
    outputs = alone(torch.from_numpy(some[0].inputs).permute(0, 3, 1, 2)).detach().numpy()
    np.testing.assert_allclose(outputs, before, rtol=1e-12)


def test_every_sample_counts_alike_in_the_statistics() -> None:
    """Also of so few training samples that they are no whole number of minibatches."""
    inputs = np.random.default_rng(1).standard_normal((37, 3)).astype(np.float32)
    corpus = OwnPart("data", "train", (inputs, np.zeros(37, np.int32)), 2, np.float32)
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    model = TorchModel(lambda seed: module, (3,), 2, form=corpus.form)
    theta = model.initial(1)
    Measuring(model, corpus, 1, np.float32).run(theta)
    np.testing.assert_allclose(model.kept(theta)["0.running_mean"], inputs.mean(0), atol=0.02)


def test_a_compiled_module_computes_what_it_is_made_of_does() -> None:
    """Gradients and measured statistics; `torch.compile` puts a word before the names."""
    plain, compiled = (
        TorchModel(lambda seed, c=c: torch.compile(Residual(7), backend="eager") if c else Residual(7), (8, 8, 1), 7)
        for c in (False, True)
    )
    theta, batch = plain.initial(1, np.float64), batches((8, 8, 1), 1)[0]
    np.testing.assert_array_equal(compiled.initial(1, np.float64), theta)
    found = []
    for model in (plain, compiled):
        gradient = np.empty_like(theta)
        model.loss_and_gradient(theta, gradient, batch)
        model.measure(theta, batch.inputs, 0, 1)
        found.append((gradient, model.outputs(theta, batch.inputs).copy()))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-12)
    assert list(compiled.layout.slices) == [f"_orig_mod.{name}" for name in plain.layout.slices]


def test_bf16_products_and_float32_gradients() -> None:
    model, exact = (TorchModel(lambda seed: Tied(20, 7), (4, 5), 7, bf16=bf16) for bf16 in (True, False))
    theta, batch = model.initial(1), batches((4, 5), 1)[0]
    batch = Batch(batch.inputs.astype(np.float32), batch.targets)
    rough, fine = (m.outputs(theta, batch.inputs) for m in (model, exact))
    assert rough.dtype == np.float32 and 1e-6 < np.abs(rough - fine).max() < 0.05


class Turning(nn.Module):
    """Rotary positions: pairs of features are multiplied by complex constants, one of them conjugate by a mark."""

    def __init__(self, classes: int = 3, kind: "torch.dtype" = torch.complex64) -> None:
        super().__init__()
        turn = torch.polar(torch.ones(2), torch.rand(2) * 3).to(kind)
        self.register_buffer("turn", turn)
        self.register_buffer("back", torch.polar(torch.ones(2), torch.rand(2) * 3).conj(), persistent=False)
        self.last = nn.Linear(4, classes)

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        pairs = torch.view_as_complex(x.reshape(-1, 2, 2)) * self.turn * self.back
        return self.last(torch.view_as_real(pairs).flatten(1))


@pytest.mark.parametrize("kind", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_complex_constants_keep_their_imaginary_parts(dtype: type, kind: "torch.dtype") -> None:
    """In either precision, and where they go: outside, into a checkpoint, and back into another module."""
    model = TorchModel(lambda seed: Turning(kind=kind), (2, 2), 3)
    theta, batch = model.initial(1, dtype), batches((2, 2), 1, classes=3)[0]
    inputs = batch.inputs.astype(dtype)
    found = model.outputs(theta, inputs).copy()
    assert found.dtype == dtype
    alone, precision = model.standalone(theta), torch.from_numpy(theta).dtype.to_complex()
    assert (alone.turn.dtype, alone.back.dtype) == (precision, precision)
    pairs = inputs[..., 0] + 1j * inputs[..., 1]
    turned = pairs * alone.turn.numpy() * alone.back.resolve_conj().numpy()
    views, close = model.layout.views(theta), {"rtol": 1e-5, "atol": 1e-6}
    features = np.stack([turned.real, turned.imag], -1).reshape(6, 4)
    np.testing.assert_allclose(found, features @ views["last.weight"].T + views["last.bias"], **close)
    np.testing.assert_allclose(alone(torch.from_numpy(inputs)).detach().numpy(), found, **close)
    kept = model.kept(theta)
    assert kept.keys() == {"turn"} and kept["turn"].dtype == np.result_type(dtype, np.complex64)
    kept["turn"] = kept["turn"] * 1j
    other = TorchModel(lambda seed: Turning(kind=kind), (2, 2), 3)
    other.restore(kept, theta)
    np.testing.assert_allclose(other.kept(theta)["turn"], alone.turn.numpy() * 1j, **close)
    with pytest.raises(BadInput, match=r"has no turn of 2 elements of float64, which the checkpoint holds"):
        other.restore({"turn": np.ones(2)}, theta)


class Holding(nn.Linear):
    """Constants of all kinds."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        marks = torch.rand(3) < 0.5
        for name, tensor in {
            "integers": torch.randperm(5),
            "bytes": torch.randint(200, (3,), dtype=torch.uint8),
            "marks": marks,
            "again": marks,
            "scalar": torch.rand(()),
            "undefined": torch.tensor([float("nan"), float("-inf"), float(torch.rand(()))]),
            "empty": torch.zeros(0, 2),
            "expanded": torch.rand(1).expand(3),
            "short": torch.rand(2).half(),
        }.items():
            self.register_buffer(name, tensor)
        self.register_buffer("hidden", torch.rand(2), persistent=False)

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        return super().forward(x.flatten(1)) + torch.where(self.again, self.scalar, self.expanded)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_constants_of_all_kinds(dtype: type) -> None:
    model, other = (TorchModel(lambda seed: Holding(), (2, 2), 3, seed=seed) for seed in (1, 2))
    theta, inputs = model.initial(1, dtype), batches((2, 2), 1)[0].inputs.astype(dtype)
    kept = model.kept(theta)
    built = model.standalone(theta)
    assert kept.keys() == {name for name, _ in Holding().named_buffers(remove_duplicate=False)} - {"hidden"}
    for name, array in kept.items():
        assert array.dtype.kind == {"integers": "i", "bytes": "u", "marks": "b", "again": "b"}.get(name, "f")
        np.testing.assert_array_equal(array, getattr(built, name).numpy())
    assert not np.array_equal(other.outputs(theta, inputs), model.outputs(theta, inputs))
    other.restore({name: array.reshape(-1) for name, array in kept.items()}, theta)
    np.testing.assert_array_equal(other.outputs(theta, inputs), model.outputs(theta, inputs))


class Extra(nn.Linear):
    """A layer that adds to its state_dict what is no tensor."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.steps, self.count = {"seen": 2}, False

    def get_extra_state(self) -> object:
        return {**self.steps, "tensor": torch.ones(3)}

    def set_extra_state(self, state: object) -> None:
        raise AssertionError("nothing has been saved")

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        self.steps["seen"] += self.count
        return super().forward(x.flatten(1))


def test_extra_state_is_as_the_module_was_built() -> None:
    model = TorchModel(lambda seed: Extra(), (2, 2), 3)
    theta = model.initial(1)
    assert not model.kept(theta) and not model.holds_buffers
    assert model.standalone(theta).state_dict()["_extra_state"]["seen"] == 2

    def counting() -> nn.Module:
        module = Extra()
        module.count = True
        return module

    with pytest.raises(BadInput, match="the extra state _extra_state changes in training"):
        TorchModel(lambda seed: counting(), (2, 2), 3)


class ByHand(nn.Linear):
    """It normalises by the minibatch without a layer of PyTorch's: one sample alone gives NaN."""

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        x = x.flatten(1)
        return super().forward((x - x.mean(0)) / (x.var(0) + 1e-5).sqrt())


NORMALISING = {
    "tracked": lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 3)),
    "untracked": lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)),
    "by hand": lambda: ByHand(4, 3),
}


@pytest.mark.parametrize("kind", NORMALISING)
def test_one_sample_alone_is_normalised_with_itself(kind: str) -> None:
    """In the last minibatch, as a share of one, as all there is to measure, and in evaluation."""
    model = TorchModel(lambda seed: NORMALISING[kind](), (2, 2), 3)
    theta, two = model.initial(1, np.float64), batches((2, 2), 1, n=2, classes=3)[0]
    one, twice = Batch(two.inputs[:1], two.targets[:1]), Batch(*(each[[0, 0]] for each in two))
    found, expected = np.full_like(theta, np.nan), np.empty_like(theta)
    losses = [model.loss_and_gradient(theta, out, b) for out, b in ((found, one), (expected, twice))]
    assert losses[0] == pytest.approx(losses[1]) and np.isfinite(found).all()
    np.testing.assert_allclose(found, expected, atol=1e-12)
    if model.measures:
        model.measure(theta, one.inputs, 0, 1)
        assert model.kept(theta)["1.running_mean"] == pytest.approx(one.inputs.ravel())
        assert not model.kept(theta)["1.running_var"].any()
    alone = model.outputs(theta, one.inputs).copy()
    assert alone.shape == (1, 3)
    np.testing.assert_allclose(alone, model.outputs(theta, twice.inputs)[:1], atol=1e-12)
    assert np.isfinite(model.evaluate(theta, one)[0])


def test_a_module_that_takes_one_sample_computes_it_once() -> None:
    seen: list[int] = []

    class Telling(nn.Linear):
        def forward(self, x: "torch.Tensor") -> "torch.Tensor":
            seen.append(len(x))
            return super().forward(x.flatten(1))

    model = TorchModel(lambda seed: Telling(4, 3), (2, 2), 3)
    theta, batch = model.initial(1, np.float64), batches((2, 2), 1, n=1, classes=3)[0]
    seen.clear()
    model.loss_and_gradient(theta, np.empty_like(theta), batch)
    model.outputs(theta, batch.inputs)
    assert seen == [1, 1]


def test_a_norm_with_two_names_has_statistics_by_both() -> None:
    def make() -> nn.Module:
        norm = nn.BatchNorm1d(4)
        return nn.Sequential(nn.Flatten(), norm, nn.Linear(4, 4), norm, nn.Linear(4, 3))

    model = TorchModel(lambda seed: make(), (2, 2), 3)
    theta, batch = model.initial(1, np.float64), batches((2, 2), 1, classes=3)[0]
    assert not model.kept(theta)
    model.measure(theta, batch.inputs, 0, 1)
    kept = model.kept(theta)
    assert len(kept) == 6 and (kept["1.running_var"] == kept["3.running_var"]).all()


def test_a_module_that_is_always_the_same_is_copied() -> None:
    """Or where a part of it is. The caller's stays as it was, and training does not change the initial weights."""
    part = nn.Linear(4, 4)
    whole = nn.Sequential(nn.Flatten(), part, nn.BatchNorm1d(4), nn.Linear(4, 3))
    before = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    first = part.weight.detach().clone()
    for make in (lambda: whole, lambda: nn.Sequential(nn.Flatten(), part, nn.Linear(4, 3))):
        model = TorchModel(lambda seed, make=make: make(), (2, 2), 3)
        theta, batch = model.initial(1, np.float64), batches((2, 2), 1, classes=3)[0]
        gradient, start = np.empty_like(theta), theta.copy()
        model.loss_and_gradient(theta, gradient, batch)
        theta -= gradient
        np.testing.assert_array_equal(model.initial(1, np.float64), start)
        np.testing.assert_array_equal(model.standalone(theta)[1].weight.detach(), model.layout.views(theta)["1.weight"])
        assert torch.equal(part.weight, first)
    assert whole[2].momentum == 0.1 and all(torch.equal(before[n], t) for n, t in whole.state_dict().items())


def test_a_module_that_is_always_the_same_and_cannot_be_copied() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    module.file = open(__file__)  # noqa: SIM115
    with module.file, pytest.raises(BadInput, match="returns the same tensors each time, which cannot be copied: Type"):
        TorchModel(lambda seed: module, (2, 2), 3)


class InOneMode(nn.Linear):
    """It fails, or gives something else, in evaluation alone."""

    def __init__(self, how: str) -> None:
        super().__init__(4, 3)
        self._how = how
        self.register_buffer("evaluated", torch.zeros(1))

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        y = super().forward(x.flatten(1))
        if self.training:
            return y
        if self._how == "counts":
            self.evaluated += 1
        return self.missing(y) if self._how == "fails" else y[:, :2] if self._how == "cuts" else y


class Alias(nn.Linear):
    """A buffer in the memory of a weight, which is elsewhere once the weights lie in one vector."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.register_buffer("alias", self.weight.detach())


class Holder(nn.Linear):
    """A buffer, such as one that NumPy's arrays cannot hold, or one that depends on more than the seed."""

    def __init__(self, tensor: "torch.Tensor", persistent: bool = True) -> None:
        super().__init__(4, 3)
        self.register_buffer("held", tensor, persistent=persistent)


class Counting(nn.Linear):
    """A buffer changes in training."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        self.seen += 1
        return super().forward(x.flatten(1))


class Limited(nn.Linear):
    """Its weights are limited in forward, in place or by others in their stead, equal ones where they are small."""

    def __init__(self, in_place: bool) -> None:
        super().__init__(4, 3)
        self._in_place, self._limit = in_place, 0.1 if in_place else 1.0

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        limited = self.weight.data.clamp(-self._limit, self._limit)
        if self._in_place:
            self.weight.data.copy_(limited)
        else:
            self.weight.data = limited
        return super().forward(x.flatten(1))


class Rounded(nn.Module):
    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        return x.long()


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 3))

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        return nn.functional.embedding(x.flatten(1).abs().long() % 4, self.weight, sparse=True).mean(1)


def shared_memory() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Linear(4, 3))
    module[2].weight.data = module[1].weight.data[:3]
    return module


def failing() -> nn.Module:
    raise KeyError("depth")


FLAT, COUNT = nn.Flatten(), itertools.count()
REFUSED: dict[str, Callable[[], object]] = {
    "outputs for 2 samples are of shape [2, 5], not [2, 3] (classes)": lambda: nn.Sequential(FLAT, nn.Linear(4, 5)),
    "the buffer seen changes in training": Counting,
    "2.weight and 1.weight are two parameters in one memory": shared_memory,
    "2.weight is float64, others are float32": lambda: nn.Sequential(FLAT, nn.Linear(4, 3), nn.Linear(3, 3).double()),
    "1.weight is float16, not float32": lambda: nn.Sequential(FLAT, nn.Linear(4, 3).half()),
    "0.weight lies on meta": lambda: nn.Sequential(nn.Linear(4, 3, device="meta")),
    "0 has sparse gradients": lambda: nn.Sequential(nn.Embedding(4, 3, sparse=True)),
    "weight has a sparse gradient; compute with sparse=False": Sparse,
    "0 changes its weights in forward; build it without max_norm": lambda: nn.Sequential(
        nn.Embedding(4, 3, max_norm=9.0)
    ),
    "the parameter weight changes in training or gets other memory: forward may": lambda: Limited(True),
    "the parameter weight changes in training or gets other": lambda: Limited(False),
    "has no parameter to train": lambda: nn.Sequential(FLAT),
    "returned int, not a torch.nn.Module": lambda: 3,
    "cannot be built: KeyError: 'depth' (": failing,
    "cannot be evaluated: AttributeError: 'InOneMode' object has no attribute 'missing'": lambda: InOneMode("fails"),
    "for 2 samples in evaluation mode are of shape [2, 2], not [2, 3]": lambda: InOneMode("cuts"),
    "the buffer evaluated changes in evaluation": lambda: InOneMode("counts"),
    "the buffer alias lies in the memory of the parameter weight": Alias,
    "held is sparse_coo of float32, which": lambda: Holder(torch.eye(3).to_sparse()),
    "held is strided of bfloat16, which": lambda: Holder(torch.ones(3).bfloat16()),
    "the buffer held is not persistent, and built with other values": lambda: Holder(torch.tensor(next(COUNT)), False),
    "are of shape [2, 3] and type int64": lambda: nn.Sequential(FLAT, nn.Linear(4, 3), Rounded()),
    "cannot be trained: RuntimeError: mat1 and mat2": lambda: nn.Sequential(FLAT, nn.Linear(5, 3)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_trained_is_refused_by_name(reason: str) -> None:
    with pytest.raises(BadInput) as refused:
        TorchModel(lambda seed: REFUSED[reason](), (2, 2), 3, name="model.import = 'x.py:build'")
    assert str(refused.value).startswith("model.import = 'x.py:build': ") and reason in str(refused.value)


class Keeping(nn.Linear):
    """It evaluates with weights that it computed when it last trained, or fails where it has not."""

    def __init__(self, made: bool) -> None:
        super().__init__(4, 3)
        if made:
            self.doubled = 2 * self.weight.detach()

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        if self.training:
            self.doubled = 2 * self.weight
        return nn.functional.linear(x.flatten(1), self.doubled)


class Choosy(nn.Linear):
    """It fails with parameters that it would not have."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.sum = float(self.weight.sum())

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        assert abs(float(self.weight.sum()) - self.sum) < 1e-3
        return super().forward(x.flatten(1))


def test_a_module_that_keeps_what_it_has_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is evaluated in training is not what a module gives that is made from a checkpoint."""
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    usual = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 3))
    for module, remembers in ((Keeping(True), True), (Keeping(False), True), (usual, False), (Choosy(), False)):
        model = TorchModel(lambda seed, module=module: copy.deepcopy(module), (2, 2), 3)
        assert model.remembers() is remembers


def test_lazy_layers_and_a_loss_of_ones_own() -> None:
    model = TorchModel(
        lambda seed: nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), (2, 2), 3, loss=lambda z, t: (z**2).mean()
    )
    theta, batch = model.initial(1, np.float64), batches((2, 2), 1, classes=3)[0]
    loss, outputs = model.loss_and_gradient(theta, np.empty_like(theta), batch), model.outputs(theta, batch.inputs)
    assert loss == pytest.approx((outputs**2).mean()) and model.evaluate(theta, batch)[0] == pytest.approx(6 * loss)


def test_memory_that_is_freed_is_kept() -> None:
    """Otherwise 64 MB of activations cost 16,384 page faults at every step."""
    if not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
        pytest.skip("the C library is not glibc")
    TORCH_MODELS["torch-frames"]()

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        activations = [torch.zeros(1 << 22) for _ in range(4)]
        del activations
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

    faults()
    assert sorted(faults() for _ in range(3))[1] < 1000  # the system may take pages back once
