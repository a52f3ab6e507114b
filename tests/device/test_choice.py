"""Which device a rank takes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mpitrain.device.choice import choose
from mpitrain.errors import BadInput
from mpitrain.start import local_rank_of

FAKE = Path(__file__).resolve().parent.parent / "fake_cupy"


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, 7),
        ({"SLURM_LOCALID": "3"}, 3),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "2", "SLURM_LOCALID": "0"}, 2),  # mpirun within a batch script
        ({"MPI_LOCALRANKID": "5"}, 5),
        ({"PMI_LOCAL_RANK": "4"}, 4),
        ({"PALS_LOCAL_RANKID": "6", "SLURM_LOCALID": "0"}, 6),
        ({"SLURM_LOCALID": "none"}, 7),
    ],
)
def test_the_launcher_says_which_of_its_nodes_ranks_this_is(environment: dict[str, str], rank: int) -> None:
    assert local_rank_of(environment, 7) == rank


def test_the_cpu_when_told_so() -> None:
    assert choose("cpu", "float32", 0).name == "cpu"


def test_ranks_share_the_gpus(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setenv("FAKE_CUPY_DEVICES", "2")
    if cupy.__version__ != "0.fake":
        pytest.skip("needs two GPUs")
    gpus: list[Any] = [choose("gpu", "float32", rank, {}) for rank in range(5)]
    for gpu in reversed(gpus):
        gpu.compute.__exit__()
    cupy.cuda.Device(0).use()
    assert [gpu.number for gpu in gpus] == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("missing", ["module", "driver", "devices", "toolkit"])
def test_without_a_gpu_auto_says_why_and_gpu_is_bad_input(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None if missing == "module" else cupy)

    def count() -> int:
        if missing == "driver":
            raise cupy.cuda.runtime.CUDARuntimeError(35)  # cudaErrorInsufficientDriver
        return int(missing == "toolkit")

    def version() -> None:
        raise RuntimeError('Failure finding "libnvrtc.so.13"\nand more')

    if missing != "module":
        monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", count)
        monkeypatch.setattr(cupy.cuda.nvrtc, "getVersion", version)
    device = choose("auto", "float32", 0)
    assert device.name == "cpu" and device.why
    with pytest.raises(BadInput, match=r"run\.device = 'gpu': ") as refused:
        choose("gpu", "float32", 0)
    assert ("pip install" in str(refused.value)) == (missing in ("module", "toolkit"))
    assert "\n" not in str(refused.value)


def test_a_gpu_that_is_not_there_is_one_line_and_status_2(launch: Any, tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("raise ImportError('libcuda.so.1: cannot open shared object file')\n")
    program = (
        "-c",
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from mpitrain.__main__ import main; sys.exit(main())",
    )
    ended = launch(2, "--set", "run.device=gpu", program=program)
    assert ended.status == 2 and ended.err.count("\n") == 1
    assert "run.device = 'gpu': CuPy: libcuda.so.1" in ended.err


def test_info_tells_of_gpu_and_staging(stand_in: Any) -> None:
    code = "import sys; from mpitrain.__main__ import main; sys.exit(main(['info']))"
    environment = {"PYTHONPATH": str(FAKE), "PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    lines = dict(line.split("  ", 1) for line in ended.stdout.splitlines() if "  " in line)
    assert "fake" in lines["GPU"] and "driver for CUDA 13.0" in lines["GPU"]
    assert any(line.startswith("CUDA-aware MPI") and "run.cuda_aware" in line for line in ended.stdout.splitlines())
