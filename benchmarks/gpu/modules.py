"""A PyTorch module of model.import on the GPU: are its kernels in order with ours, and how long does a step take?

    python benchmarks/gpu/modules.py [resnet] [mlp] [--repeats 20] [--matmul float32|tf32|bf16] [--json FILE]

A step is forward, loss, backward, the update of SGD, and the loss on the host, against a plain PyTorch loop in the same
process and precision, in turns. The order: a gradient at weights that a kernel changes just before, copied to the host
part by part while backward goes on, must be the one that is computed when the host waits everywhere. As a control it is
computed in PyTorch's own stream, too, where it should be wrong; exit status 1 if it is wrong in ours.
"""

import argparse
import importlib.util
import json
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from steps import compare, flat_step, plain_step

from mpitrain.device import choose
from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.models.torch import start as torch_start
from mpitrain.sampling.batch import Batch

MINIBATCH = 512
BUSY = 50  # kernels that the GPU is behind


def measured() -> ModuleType:
    """The modules of benchmarks/torch."""
    spec = importlib.util.spec_from_file_location("measured", Path(__file__).parents[1] / "torch" / "modules.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def difference(device: Any, model: Any, batch: Batch, side: int, waiting: Array | None = None) -> tuple[float, Array]:
    """Compute the gradient as said above; its relative difference from `waiting`, or without that the gradient itself,
    computed with the host waiting between kernels."""
    theta = device.to_device(model.initial(1))
    gradient, host = np.zeros_like(theta), np.full(theta.shape, np.nan, np.float32)
    large, leaving = device.to_device(np.ones((side, side), np.float32)), device.outgoing(gradient, host)
    for _ in range(BUSY):
        np.multiply(large, np.float32(1), out=large)
    np.multiply(theta, np.float32(2), out=theta)
    if waiting is None:
        device.compute.synchronize()
    model.loss_and_gradient(theta, gradient, batch, None, leaving.start)
    np.multiply(theta, np.float32(np.nan), out=theta)
    leaving.finish()
    device.cupy.cuda.Device(device.number).synchronize()
    norm = np.linalg.norm(host if waiting is None else waiting)
    wrong = 0.0 if waiting is None else float(np.linalg.norm(host - waiting) / norm)
    return wrong if np.isfinite(wrong) else float("inf"), host


def order(device: Any, make: Any, shape: tuple[int, ...], batch: Batch, side: int) -> dict[str, float]:
    """The relative differences in our order and without it."""
    from mpitrain.device.gpu_place import GpuPlace
    from mpitrain.models.torch.module import TorchModel

    class Unordered(GpuPlace):
        def computing(self) -> AbstractContextManager[None]:  # type: ignore[override]
            return nullcontext()

    model = TorchModel(lambda seed: make(), shape, 10, place=device.place())
    waiting = difference(device, model, batch, side)[1]
    found = {"ours": max(difference(device, model, batch, side, waiting)[0] for _ in range(3))}
    model.place = Unordered(device, device.matmul)
    found["control"] = max(difference(device, model, batch, side, waiting)[0] for _ in range(3))
    return found


def main() -> int:
    """One line a module, and one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=["resnet", "mlp"])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--matmul", choices=("float32", "tf32", "bf16"), default="tf32")
    parser.add_argument("--minibatch", type=int, default=MINIBATCH)
    parser.add_argument("--side", type=int, default=8192, help="of a matrix that keeps the GPU busy")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = choose("gpu", options.matmul, 0)
    try:
        missing = torch_start.without_cuda("modules.py")
    except BadInput as error:
        missing = str(error)
    if missing:
        print(f"no modules: {missing}")
        return 0
    from mpitrain.models.torch.module import TorchModel

    place, found = device.place(), measured()
    print(device)
    results: list[dict[str, Any]] = []
    report = {"device": str(device), "matmul": options.matmul, "modules": results}
    for name in options.cases:
        make, shape, rng = found.MODULES[name], found.SHAPE, np.random.default_rng(0)
        inputs = rng.standard_normal((options.minibatch, *shape), np.float32)
        targets = rng.integers(0, found.CLASSES, options.minibatch).astype(np.int32)
        batch = Batch(device.to_device(inputs), device.to_device(targets))
        wrong = order(device, make, shape, batch, options.side)
        bf16 = options.matmul == "bf16"
        models = [TorchModel(lambda seed, make=make: make(), shape, 10, bf16=bf16, place=place) for _ in range(2)]
        ours, plain = flat_step(device, models[0], batch), plain_step(device, models[1], batch)
        seconds = compare({"mpitrain": ours, "torch": plain}, options.repeats)
        ratio = seconds["torch"] / seconds["mpitrain"]
        results.append({"module": name, "minibatch": options.minibatch, "seconds": seconds, "ratio": ratio} | wrong)
        times = f"{seconds['mpitrain'] * 1e3:.2f} ms, plain PyTorch {seconds['torch'] * 1e3:.2f} ms ({ratio:.2f}x)"
        said = f"differs by {wrong['ours']:.1e} in our order, by {wrong['control']:.1e} without"
        print(f"{name:<8} minibatch {options.minibatch}: {times}; the gradient {said}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if any(each["ours"] > 1e-3 for each in results) else 0


if __name__ == "__main__":
    sys.exit(main())
