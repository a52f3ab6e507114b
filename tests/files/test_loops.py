"""Compiled loops: what they get and return, where their machine code is kept, and when it is not taken."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mpitrain.files.loops import loop, vector


@loop
def _twice(x):  # type: ignore[no-untyped-def]
    return 2 * x


@loop
def everything(x, shape, scale, flag, nothing):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(shape[0]):
        for j in range(shape[1]):
            x[i, j] *= scale
            total += x[i, j]
    if nothing is None and flag:
        total = _twice(total)
    return total, shape[1], flag


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of compiled loops, and loops that have not been called."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(everything, "_entries", {})
    return tmp_path


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("flag", [False, True])
def test_arguments_of_every_kind_arrive_and_results_return(dtype: type, transposed: bool, flag: bool) -> None:
    """Arrays of any layout, tuples, numbers and None go in; a tuple of numbers comes back; loops call loops."""
    x = np.arange(12, dtype=dtype).reshape(3, 4)
    x = x.T[::2] if transposed else x
    wanted = x * dtype(0.5)
    total, columns, told = everything(x, x.shape, dtype(0.5), flag, None)
    np.testing.assert_array_equal(x, wanted)
    assert total == wanted.sum() * (1 + flag) and columns == x.shape[1] and told is flag


def call() -> float:
    return float(everything(np.ones((2, 2)), (2, 2), 3.0, True, None)[0])


def test_a_damaged_file_is_compiled_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off, with another bit, empty: what is loaded as machine code must be what was written."""
    assert call() == 24
    (file,) = folder.glob("*.loop")
    whole = file.read_bytes()
    flipped = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
    for damaged in (whole[:-1], flipped, b"", b"[]\n", whole.replace(b"made_for", b"made_fur")):
        file.write_bytes(damaged)
        monkeypatch.setattr(everything, "_entries", {})
        assert call() == 24
        assert file.read_bytes() != damaged


def test_a_read_only_array_is_not_written() -> None:
    """Numba refuses to compile what would write to it, such as a file that is mapped into memory."""
    x = np.ones((2, 2))
    x.flags.writeable = False
    with pytest.raises(Exception, match=r"(?i)readonly|cannot modify|setitem"):
        everything(x, (2, 2), 3.0, True, None)


def test_an_array_in_pieces_is_no_vector() -> None:
    """A copy would be written instead of it."""
    x = np.ones((2, 3))
    assert np.shares_memory(vector(x), x)
    with pytest.raises(ValueError, match="in one piece"):
        vector(x[:, :2])


def test_a_start_with_compiled_loops_loads_no_compiler(tmp_path: Path) -> None:
    """The second training of a machine imports neither Numba nor, on a rank that prints nothing, what prints."""
    program = (
        "import sys; from mpitrain.__main__ import main; "
        "main(['--set', 'training.epochs=0.02', '--set', 'run.progress=none', '--set', 'run.out=runs']); "
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'numba', 'rich', 'matplotlib', 'onnx'}))"
    )
    command = [sys.executable, "-c", program]
    told = [subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300) for _ in range(2)]
    assert [each.stdout.splitlines()[-1:] for each in told] == [["['numba']"], ["[]"]], told
