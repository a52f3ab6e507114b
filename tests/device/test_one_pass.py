"""Update rules in one pass on the CPU: the bits of the rules."""

import numpy as np
import pytest

from mpitrain.algorithms.optimizers import adamw, sgd
from mpitrain.device.cpu import CPU

ODD = [0.0, -0.0, 1e-38, -1e-40, 3e-45, np.inf, -np.inf, np.nan, 1e30]
ADAM = {"eta": 0.002, "t": 3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
CASES = [
    (sgd.sgd, 2, {"eta": 0.013}),
    (sgd.classical, 3, {"eta": 0.013, "mu": 0.9}),
    (sgd.classical, 3, {"eta": 0.013, "mu": 0.0}),
    (sgd.look_ahead, 3, {"mu": 0.9}),
    (adamw.adamw, 4, {**ADAM, "decay": 0.01}),
    (adamw.adamw, 4, {**ADAM, "decay": 0.0}),
]


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("rule", "count", "scalars"), CASES)
def test_the_bits_of_the_rule(rule: object, count: int, scalars: dict[str, float], dtype: type) -> None:
    """Rounded products, subnormals, infinities, signs of zero; on slices, which are aligned to nothing."""
    assert callable(rule) and CPU.fast(rule) is not rule
    rng = np.random.default_rng(count)
    vectors = rng.standard_normal((count, 5003)).astype(dtype)
    for vector in vectors:
        vector[rng.integers(0, 5003, 500)] = rng.choice(np.array(ODD, dtype), 500)
    scratch = [np.empty(5002, dtype)] if "eta" in scalars else []
    expected, found = vectors.copy(), vectors.copy()
    rule(*(v[1:] for v in expected), *scratch, **scalars)
    CPU.fast(rule)(*(v[1:] for v in found), *scratch, **scalars)
    assert (found != vectors).any()
    np.testing.assert_array_equal(found, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(expected[numbers]))
