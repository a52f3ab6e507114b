"""Posteriors and scaled log-likelihoods by hand."""

from pathlib import Path

import numpy as np
import pytest

from mpitrain.errors import BadInput
from mpitrain.trained.posteriors import convert, log_priors, read_priors


def test_softmax_by_hand() -> None:
    """Outputs log 1, log 2, log 5 have posteriors 1/8, 2/8, 5/8; over priors 1/2, 1/4, 1/4 they are 1/4, 1, 5/2."""
    z = np.log([[1.0, 2.0, 5.0]])
    priors = log_priors(np.array([2, 1, 1]), 0.0)
    np.testing.assert_allclose(convert(z, "softmax", "posteriors", None), [[1 / 8, 2 / 8, 5 / 8]], rtol=1e-14)
    np.testing.assert_allclose(convert(z, "softmax", "log-posteriors", None), np.log([[1 / 8, 2 / 8, 5 / 8]]))
    np.testing.assert_allclose(convert(z, "softmax", "log-likelihoods", priors), np.log([[1 / 4, 1, 5 / 2]]))


def test_logistic_by_hand() -> None:
    """Outputs log 1, log 3 have posteriors 1/2, 3/4."""
    z = np.log([[1.0, 3.0]])
    np.testing.assert_allclose(convert(z, "logistic", "posteriors", None), [[0.5, 0.75]], rtol=1e-14)
    np.testing.assert_allclose(convert(z, "logistic", "log-posteriors", None), np.log([[0.5, 0.75]]), rtol=1e-14)


@pytest.mark.parametrize("output", ["softmax", "logistic"])
def test_great_outputs_stay_finite(output: str) -> None:
    z = np.array([[1000.0, -1000.0]], np.float32)
    np.testing.assert_array_equal(convert(z, output, "posteriors", None), [[1, 0]])
    logarithms = convert(z, output, "log-posteriors", None)
    np.testing.assert_array_equal(logarithms, [[0, -2000 if output == "softmax" else -1000]])


def test_smoothing_is_added_to_each_class() -> None:
    """Counts 0, 1, 5 and 1 for each: 1/9, 2/9, 6/9. Without it the first has none."""
    np.testing.assert_allclose(np.exp(log_priors(np.array([0, 1, 5]), 1.0)), [1 / 9, 2 / 9, 6 / 9])
    with pytest.raises(BadInput, match="class 0 has a prior of 0"):
        log_priors(np.array([0, 1, 5]), 0.0)


def test_priors_are_read_as_kaldi_writes_counts(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    for content in ("[ 1 2.5 3 ]\n", "1\n2.5\n3\n", "\ufeff1 2.5 3\r\n"):  # the last one by an editor of Windows
        path.write_text(content)
        np.testing.assert_array_equal(read_priors(path, 3), [1, 2.5, 3])
    for shape in (2,), (1, 2), (2, 1):
        np.save(tmp_path / "p.npy", np.array([1, 2], np.float32).reshape(shape))
        np.testing.assert_array_equal(read_priors(tmp_path / "p.npy", 2), [1, 2])
    for content in ("", "1 2", "1 2 x", "1 2 -3", "1 2 nan"):
        path.write_text(content)
        with pytest.raises(BadInput, match="counts: "):
            read_priors(path, 3)
    for name in ("none", "none.npy"):
        with pytest.raises(BadInput, match=name):
            read_priors(tmp_path / name, 3)
    (tmp_path / "bad.npy").write_bytes(b"")
    np.save(tmp_path / "records.npy", np.zeros(3, [("count", np.int64), ("share", np.float64)]))
    for name in ("bad", "records"):
        with pytest.raises(BadInput, match=rf"{name}\.npy"):
            read_priors(tmp_path / f"{name}.npy", 3)
