"""Every kernel compiles as CuPy would compile it, without a warning and without a spill."""

import re

import numpy as np
import pytest

from . import nvrtc

try:
    nvrtc.library()
except (FileNotFoundError, OSError) as error:
    pytest.skip(str(error), allow_module_level=True)

#: Blocks of this many threads are the largest that are launched; a multiprocessor has 2^16 registers.
THREADS, REGISTERS = 256, 1 << 16


@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
@pytest.mark.parametrize("file", nvrtc.files())
def test_without_warnings_and_spills(file: str, architecture: str) -> None:
    check(file, np.float32, architecture)


@pytest.mark.parametrize("file", nvrtc.files())
def test_in_float64(file: str) -> None:
    check(file, np.float64, "sm_90")


def check(file: str, dtype: type, architecture: str) -> None:
    made = nvrtc.compiled(file, dtype, architecture)
    assert "warning" not in made.log, made.log
    kernels = re.findall(r'extern "C" __global__[^(]*?(?:\(\w+\))?[^(]*?void (\w+)\(', nvrtc.source(file))
    assert sorted(kernels) == [usage.kernel for usage in made.usage] != []
    for usage in made.usage:
        assert not usage.spilled, usage
        # Four blocks a multiprocessor, so that the memory has enough to do.
        assert usage.registers * THREADS * 4 <= REGISTERS, usage
    # What must have the bits of the CPU: nothing fused, no subnormal flushed, though CuPy asks for that.
    if '#include "exact.cuh"' in (nvrtc.FOLDER / f"{file}.cu").read_text():
        assert not re.findall(r"\b(?:fma|mad|(?:add|sub|mul|div|sqrt)\.(?:rn\.)?ftz)\.\S*f\d\d", made.ptx)


def test_a_warning_or_an_error_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "source", lambda file: 'extern "C" __global__ void odd(int *x) { int unused; *x = 1; }')
    assert "warning" in nvrtc.compiled("odd", np.float32, "sm_90").log
    monkeypatch.setattr(nvrtc, "source", lambda file: "nonsense")
    with pytest.raises(RuntimeError, match=r"odd\.cu for sm_90"):
        nvrtc.compiled("odd", np.float32, "sm_90")


def test_the_readme_has_every_kernel() -> None:
    """Its table of registers and spills is made by `python -m tests.kernels.nvrtc`."""
    readme = nvrtc.FOLDER / "README.md"
    if not readme.exists():
        pytest.skip("kernels/README.md is not installed")
    listed = re.findall(r"^\| `(\w+)\.cu` (\w+) \|", readme.read_text(), re.MULTILINE)
    assert listed == [(f, u.kernel) for f in nvrtc.files() for u in nvrtc.compiled(f, np.float32, "sm_90").usage]
