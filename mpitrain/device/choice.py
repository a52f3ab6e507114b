"""Choose the device of a rank, from `run.device`, its number on the node, and the installed software."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from mpitrain.device.cpu import CPU, Cpu
from mpitrain.errors import BadInput, first_line, installed, missing
from mpitrain.mpi import Transport
from mpitrain.start import local_rank_of

MISSING, TOOLKIT = "CuPy is not installed", "CuPy finds no CUDA toolkit"


def choose(
    wanted: str,
    matmul: str,
    local_rank: int,
    environment: Mapping[str, str] = os.environ,
    unfit: Callable[[], str] = lambda: "",
) -> Cpu:
    """The device that run.device and run.matmul ask for.

    `local_rank`, from MPI, is used if the launcher does not set one. `unfit` says why no GPU can compute what is to be
    computed; "" if one can.

    Raises BadInput if a GPU is required and there is none.
    """
    if wanted == "cpu":
        return CPU
    cupy, why = _cupy()
    why = why or unfit()
    if why:
        if wanted == "gpu":
            hint = "; pip install '.[cuda12]' or '.[cuda13]'" if why.startswith((MISSING, TOOLKIT)) else ""
            raise BadInput(f"run.device = 'gpu': {why}{hint}")
        device = Cpu()
        device.why = why
        return device
    from mpitrain.device.gpu import Gpu

    count = cupy.cuda.runtime.getDeviceCount()
    return Gpu(cupy, local_rank_of(environment, local_rank) % count, matmul)


def agree(device: Cpu, transport: Transport, aware: bool, source: str) -> None:
    """Set `device.direct` to the same value on all ranks: vectors are passed from GPU memory only if all can do it.

    `aware`: this rank's MPI accepts device buffers, according to `source`. Collective.
    """
    why = why_staged(transport, device.name == "gpu", aware, source)
    if device.name == "gpu":
        device.direct, device.passing = not why, why or f"MPI is CUDA-aware on every rank ({source})"


def why_staged(transport: Transport, gpu: bool, aware: bool, source: str) -> str:
    """Why vectors in GPU memory cannot be passed to MPI directly; "" if they can. Collective."""
    reason = "has no GPU" if not gpu else "" if aware else f"has an MPI that is not CUDA-aware ({source})"
    reasons = transport.gather_texts(reason, "what MPI takes")
    return next((f"rank {rank} {reason}" for rank, reason in enumerate(reasons) if reason), "")


def available() -> bool:
    """Whether there is a usable GPU. Creates no context."""
    return not _cupy()[1]


def describe() -> str:
    """One line on the GPUs of this node with driver and CuPy, or why there are none. Creates no context."""
    cupy, why = _cupy()
    if why:
        return f"none: {why}"
    runtime = cupy.cuda.runtime
    names = [runtime.getDeviceProperties(number)["name"] for number in range(runtime.getDeviceCount())]
    texts = [name.decode() if isinstance(name, bytes) else str(name) for name in names]
    driver, toolkit = _version(runtime.driverGetVersion()), _version(runtime.runtimeGetVersion())
    return f"{', '.join(texts)}; driver for CUDA {driver}, CUDA {toolkit}, CuPy {cupy.__version__}"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _cupy() -> tuple[Any, str]:
    """CuPy, and why no GPU can be used: "" if one can."""
    try:
        cupy: Any = installed("cupy")
    except Exception as error:  # not only ImportError: a CuPy for another driver raises other errors
        return None, MISSING if missing(error, "cupy") else f"CuPy: {first_line(error)}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return None, f"no GPU: {error}"
    if not count:
        return None, "no GPU"
    try:  # CuPy's wheels contain neither, and need them only at the first kernel and the first product
        cupy.cuda.nvrtc.getVersion()
        cupy.cuda.cublas  # noqa: B018
    except Exception as error:
        return None, f"{TOOLKIT}: {first_line(error)}"
    return cupy, ""
