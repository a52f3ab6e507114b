"""What holds for every rule: in place, dtype kept, the same bits on cache blocks, ufuncs only, converges on x²/2."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mpitrain.algorithms import admm, averaging, elastic, staleness
from mpitrain.algorithms.downpour import DownpourWorker
from mpitrain.algorithms.optimizers import Sgd, plain, sgd
from mpitrain.algorithms.roles import Merge
from mpitrain.algorithms.server import ServerRule
from mpitrain.flat import Array, blocks


@dataclass(frozen=True)
class Case:
    """A rule as a function of the named vectors, all of one length; those in `changed` it may write."""

    rule: Callable[..., None]
    vectors: tuple[str, ...]
    changed: tuple[str, ...]
    scalars: dict[str, Any]


def case(rule: Callable[..., None], vectors: str, changed: str, **scalars: float) -> Any:
    return pytest.param(Case(rule, tuple(vectors.split()), tuple(changed.split()), scalars), id=rule.__name__)


RULES = [
    case(sgd.sgd, "theta g scratch", "theta scratch", eta=0.1),
    case(sgd.accelerate, "v g scratch", "v scratch", eta=0.1, mu=0.9),
    case(sgd.look_ahead, "out x v", "out", mu=0.9),
    case(sgd.classical, "theta v g scratch", "theta v scratch", eta=0.1, mu=0.9),
    case(sgd.krizhevsky, "w inc g scratch", "w inc scratch", eta=0.1, mu=0.9, decay=5e-4),
    case(averaging.moving_average, "z theta scratch", "z scratch", rate=0.001),
    case(sgd.mdownpour, "y v g scratch", "y v scratch", eta=0.1, delta=0.9),
    case(staleness.penalise, "g now then squares out scratch", "squares out scratch", unit=0.1),
    case(elastic.elastic_difference, "d x centre", "d", alpha=0.3),
    case(elastic.move_centre, "centre d", "centre"),
    case(elastic.give_up, "x d", "x"),
    case(admm.dual_ascent, "lam x centre scratch", "lam scratch"),
    case(admm.step, "x u lam centre scratch", "x scratch", eta=0.1, rho=1.5),
    case(admm.centre_move, "d contribution x lam scratch", "d contribution scratch", workers=4),
]
every_rule = pytest.mark.parametrize("case", RULES)
both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def draw(case: Case, dtype: Any, size: int) -> dict[str, Array]:
    rng = np.random.default_rng(5)
    drawn = {name: rng.normal(size=size).astype(dtype) for name in case.vectors}
    return drawn | {name: drawn[name] ** 2 for name in drawn if name == "squares"}


@every_rule
@both_dtypes
def test_in_place_and_reads_stay(case: Case, dtype: Any) -> None:
    vectors = draw(case, dtype, 1000)
    before = {name: vector.copy() for name, vector in vectors.items()}
    case.rule(*vectors.values(), **case.scalars)
    for name, vector in vectors.items():
        assert vector.dtype == dtype
        assert np.array_equal(vector, before[name]) == (name not in case.changed)


@every_rule
@both_dtypes
def test_float32_arithmetic_stays_float32(case: Case, dtype: Any) -> None:
    """The float64 result rounded is not the float32 result in general; it is within a few roundings of it."""
    exact, narrow = draw(case, np.float32, 1000), draw(case, np.float32, 1000)
    wide = {name: vector.astype(np.float64) for name, vector in exact.items()}
    case.rule(*wide.values(), **case.scalars)
    case.rule(*narrow.values(), **case.scalars)
    for name in case.changed:
        np.testing.assert_allclose(narrow[name], wide[name], rtol=0, atol=4e-6)


@every_rule
@both_dtypes
def test_cache_blocks_give_the_same_bits(case: Case, dtype: Any) -> None:
    whole, parts = draw(case, dtype, 10_007), draw(case, dtype, 10_007)
    case.rule(*whole.values(), **case.scalars)
    for block in blocks(10_007, 1000):
        case.rule(*(vector[block] for vector in parts.values()), **case.scalars)
    for name in case.changed:
        assert whole[name].tobytes() == parts[name].tobytes()


class Device:
    """A device array as NumPy sees one: it answers ufuncs, and nothing converts it to a NumPy array."""

    def __init__(self, host: Array) -> None:
        self.host = host

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple["Device", ...]) -> "Device":
        assert method == "__call__"
        ufunc(*(i.host if isinstance(i, Device) else i for i in inputs), out=out[0].host)
        return out[0]

    def __array__(self, *_: Any, **__: Any) -> Array:
        raise AssertionError("a device array was copied to the host")

    def fill(self, value: float) -> None:
        self.host.fill(value)


@every_rule
def test_works_on_device_arrays(case: Case) -> None:
    host, device = draw(case, np.float32, 100), draw(case, np.float32, 100)
    case.rule(*host.values(), **case.scalars)
    case.rule(*(Device(vector) for vector in device.values()), **case.scalars)
    for name in case.changed:
        assert host[name].tobytes() == device[name].tobytes()


def sequential(step: Callable[..., None], look: float, **scalars: float) -> Callable[[Array, int], Array]:
    """Runs a rule with a velocity on F(x) = |x|²/2, whose gradient is x, at the look-ahead point x + look·v."""

    def run(x: Array, steps: int) -> Array:
        v, g, scratch = np.zeros_like(x), np.empty_like(x), np.empty_like(x)
        for _ in range(steps):
            sgd.look_ahead(g, x, v, look)
            step(x, v, g, scratch, **scalars)
        return x

    return run


def elastic_alone(x: Array, steps: int) -> Array:
    centre, v, g, d, scratch = x.copy(), np.zeros_like(x), np.empty_like(x), np.empty_like(x), np.empty_like(x)
    for _ in range(steps):
        sgd.look_ahead(g, x, v, 0.5)
        elastic.elastic_difference(d, x, centre, alpha=0.3)
        elastic.move_centre(centre, d)
        elastic.give_up(x, d)
        sgd.classical(x, v, g, scratch, eta=0.1, mu=0.5)
    return centre


def admm_alone(x: Array, steps: int) -> Array:
    centre, contribution, lam, v = x.copy(), x.copy(), np.zeros_like(x), np.zeros_like(x)
    g, d, scratch = np.empty_like(x), np.empty_like(x), np.empty_like(x)
    for _ in range(steps):
        admm.dual_ascent(lam, x, centre, scratch)
        sgd.look_ahead(g, x, v, 0.5)
        sgd.accelerate(v, g, scratch, eta=0.1, mu=0.5)
        admm.step(x, v, lam, centre, scratch, eta=0.1, rho=1.0)
        admm.centre_move(d, contribution, x, lam, scratch, workers=1)
        elastic.move_centre(centre, d)
    return centre


def server_alone(x: Array, steps: int) -> Array:
    rule, vectors, scratch = ServerRule(0.5, 0.9, plain), {"theta": x, "velocity": np.zeros_like(x)}, np.empty_like(x)
    for t in range(1, steps + 1):
        rule.merge(vectors, x.copy(), scratch, Merge(0.1, 1, t))
    return x


def downpour_alone(x: Array, steps: int) -> Array:
    worker = DownpourWorker(x, Sgd())
    for t in range(steps):
        x += worker.exchange(slice(None), x.copy(), t)
        worker.step(slice(None), worker.x.copy(), 0.1, t, True)
    return x


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(sequential(lambda x, v, g, s: sgd.sgd(x, g, s, eta=0.1), 0.0), id="sgd"),
        pytest.param(sequential(sgd.classical, 0.0, eta=0.1, mu=0.5), id="classical"),
        pytest.param(sequential(sgd.classical, 0.5, eta=0.1, mu=0.5), id="nesterov"),
        pytest.param(sequential(sgd.krizhevsky, 0.0, eta=0.1, mu=0.5, decay=5e-4), id="krizhevsky"),
        pytest.param(sequential(sgd.mdownpour, 0.0, eta=0.1, delta=0.5), id="mdownpour"),
        pytest.param(server_alone, id="server"),
        pytest.param(downpour_alone, id="downpour"),
        pytest.param(elastic_alone, id="eamsgd"),
        pytest.param(admm_alone, id="admm"),
    ],
)
@both_dtypes
def test_converges_on_a_quadratic(run: Callable[[Array, int], Array], dtype: Any) -> None:
    x = np.linspace(-3, 3, 11).astype(dtype)
    assert np.abs(run(x, 400)).max() < 1e-3
