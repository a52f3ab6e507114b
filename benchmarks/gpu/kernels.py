"""Is every kernel right, and how near does it come to the speed of the memory?

    python benchmarks/gpu/kernels.py [--elements 67108864] [--repeats 20] [--json FILE]

Each kernel runs once on small arrays beside its NumPy reference, then on large ones for its time. Bandwidth is the
bytes that a kernel must move at the least (inputs read once, outputs written once) over the median time, and stands
beside that of a device-to-device copy in the same run.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from mpitrain.compression.thresholds import UNIT
from mpitrain.kernels.launch import Kernels

sys.path.append(str(Path(__file__).resolve().parents[2]))
from tests.kernels import reference

#: Elements of the arrays on which kernels are compared with their references.
SMALL = 100_003
#: Of the largest element: how far sums and exponentials in float32 may be apart. Rules and words are compared by bits.
CLOSE = 1e-5
RNG = np.random.default_rng(0)
Array = Any
Inputs = tuple[list[Any], dict[str, float]]


@dataclass(frozen=True)
class Case:
    """A kernel, its arguments for about n elements, and the bytes it must move for them. `how` is told in the table."""

    name: str
    make: Callable[[int], Inputs]
    traffic: Callable[[list[Any]], int]
    tolerance: float = 0.0
    how: str = ""


def normal(*shape: int) -> Array:
    """Standard normal numbers, float32, others at every call; of many, the first 2^20 again and again."""
    size = int(np.prod(shape))
    few = RNG.standard_normal(min(size, 1 << 20)).astype(np.float32)
    return np.resize(few, shape)


def zeros(*shape: int, dtype: Any = np.float32) -> Array:
    """Room for results."""
    return np.zeros(shape, dtype)


def rule(name: str, arrays: int, moved: int, **scalars: float) -> Case:
    """A rule over `arrays` vectors, that reads and writes `moved` numbers an element."""
    return Case(name, lambda n: ([normal(n) for _ in range(arrays)], scalars), lambda a: 4 * moved * a[0].size)


def rows(name: str, moved: int) -> Case:
    """A loss over the outputs of zhang2013-dnn."""

    def make(n: int) -> Inputs:
        count = max(1, n // 10217)
        return [normal(count, 10217), np.arange(count, dtype=np.int32), zeros(count, dtype=np.float64)], {}

    return Case(name, make, lambda a: 4 * moved * a[0].size, CLOSE)


def layer(name: str, make: Callable[[int], list[Any]], moved: int, tolerance: float = CLOSE) -> Case:
    """An elementwise layer over rows of 4096 units."""
    return Case(name, lambda n: (make(max(1, n // 4096)), {}), lambda a: 4 * moved * a[0].size, tolerance)


def every_byte(arguments: list[Any]) -> int:
    """All arrays once."""
    return sum(each.nbytes for each in arguments if hasattr(each, "nbytes"))


def sparse(n: int) -> Inputs:
    """A residual of which 0.12 % exceed the threshold."""
    return [normal(n), zeros(n), zeros(n, dtype=np.uint32), zeros(2, dtype=np.uint32)], {
        "scale": 1.0,
        "threshold": 3.25,
    }


def levels(n: int) -> Inputs:
    """The same with 4 bits an element."""
    arrays, scalars = sparse(n)
    return [*arrays, zeros(n, dtype=np.uint32)], {**scalars, "greatest": 8}


def words(n: int) -> Inputs:
    """A message about every thousandth weight."""
    counts = (normal(n) / 10 / UNIT).astype(np.int32)
    index = np.arange(0, n, 1000, dtype=np.uint32) | np.uint32(1 << 31)
    return [index, 12345, counts, (counts * UNIT).astype(np.float32), np.full(1, reference.NONE)], {}


def pool(n: int) -> Inputs:
    """The first pooling of easgd-imagenet: 108 x 108 x 96, windows of 3."""
    count = max(1, n // (108 * 108 * 96))
    out = count, 36, 36, 96
    return [normal(count, 108, 108, 96), 3, 3, zeros(*out), zeros(*out, dtype=np.uint8)], {}


def unpool(n: int) -> Inputs:
    """And its gradient."""
    x, size, stride, out, place = pool(n)[0]
    return [normal(*out.shape), np.resize(np.arange(9, dtype=np.uint8), place.shape), size, stride, x], {}


def patches(n: int) -> tuple[Array, Array]:
    """The images and patches of the second convolution of easgd-imagenet: 36 x 36 x 96, 5 x 5 windows."""
    count = max(1, n // (32 * 32 * 25 * 96))
    return normal(count, 36, 36, 96), normal(count, 32, 32, 25 * 96)


def gather(n: int) -> Inputs:
    images, rows = patches(n)
    return [images, (5, 5), 1, 0, rows], {}


def add(n: int) -> Inputs:
    images, rows = patches(n)
    return [rows, (5, 5), 1, 0, images], {}


def images(n: int, count: int) -> list[Array]:
    """Arrays of the shape of krizhevsky2014's first convolution: 55 x 55 x 64."""
    return [normal(max(1, n // (55 * 55 * 64)), 55, 55, 64) for _ in range(count)]


ADAMW = {"eta": 0.001, "t": 4, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "decay": 0.01}
NORM = {"half": 2, "scale": 1e-4, "power": 0.75}
CASES = [
    # Residual and gradient in, residual out; a word for each element sent.
    Case("accumulate", sparse, lambda a: int(4 * (3 + 0.0012) * a[0].size)),
    Case("accumulate", levels, lambda a: int(4 * (3 + 0.0012 * 4) * a[0].size), how=", 4 bits"),
    Case("apply", words, lambda a: 4 * 4 * a[0].size),
    Case("checksum", lambda n: ([normal(n), zeros(1, dtype=np.uint64)], {}), lambda a: a[0].nbytes),
    rule("sgd", 2, 3, eta=0.01),
    rule("classical", 3, 5, eta=0.01, mu=0.9),
    rule("krizhevsky", 3, 5, eta=0.01, mu=0.9, decay=5e-4),
    rule("mdownpour", 3, 5, eta=0.01, delta=0.9),
    Case("adamw", lambda n: ([normal(n), normal(n), normal(n) ** 2, normal(n)], ADAMW), lambda a: 28 * a[0].size),
    Case("look_ahead", lambda n: ([normal(n), normal(n), normal(n), 0.9], {}), lambda a: 12 * a[0].size),
    rule("moving_average", 2, 3, rate=0.001),
    Case("add_scaled", lambda n: ([normal(n), normal(n), 1e-4], {}), lambda a: 12 * a[0].size),
    rows("softmax_loss", 1),
    rows("softmax_gradient", 2),
    rows("logistic_loss", 1),
    rows("logistic_gradient", 2),
    layer("add_bias", lambda n: [normal(n, 4096), normal(4096)], 2),
    layer("bias_relu", lambda n: [normal(n, 4096), normal(4096)], 2),
    layer("bias_sigmoid", lambda n: [normal(n, 4096), normal(4096)], 2),
    layer("relu_backward", lambda n: [normal(n, 4096), normal(n, 4096)], 3),
    layer("sigmoid_backward", lambda n: [normal(n, 4096), normal(n, 4096)], 3),
    layer("column_sums", lambda n: [normal(n, 4096), zeros(4096)], 1),
    Case("max_pool", pool, every_byte),
    Case("max_unpool", unpool, every_byte),
    Case("gather_patches", gather, every_byte),
    Case("add_patches", add, every_byte, CLOSE),
    Case("lrn_forward", lambda n: (images(n, 3), {**NORM, "offset": 2.0}), every_byte, CLOSE),
    Case("lrn_backward", lambda n: ([abs(each) + 1 for each in images(n, 4)], NORM), every_byte, CLOSE),
    # The generator is made anew for each launch.
    Case("dropout", lambda n: ([*images(n, 3), None, 0.5, 2.0], {}), every_byte),
]


def arguments(cupy: Any, given: Iterable[Any]) -> list[Any]:
    """The arguments on the device."""
    return [cupy.asarray(each) if isinstance(each, np.ndarray) else each for each in given]


def call(functions: Any, name: str, given: list[Any], scalars: dict[str, float]) -> None:
    """A kernel or its reference."""
    if name == "dropout":
        given = [each if each is not None else np.random.Generator(np.random.Philox(1)) for each in given]
    getattr(functions, name)(*given, **scalars)


def error(kernels: Kernels, case: Case) -> float:
    """How far kernel and reference are apart on small arrays, of the largest element; 0 when all bits are equal."""
    given, scalars = case.make(SMALL)
    device = arguments(kernels.xp, given)
    call(kernels, case.name, device, scalars)
    call(reference, case.name, given, scalars)
    worst = 0.0
    for ours, theirs in zip(device, given, strict=True):
        if isinstance(theirs, np.ndarray) and ours.get().tobytes() != theirs.tobytes():
            apart, largest = np.abs(ours.get().astype(float) - theirs).max(), np.abs(theirs.astype(float)).max()
            worst = max(worst, float(apart / largest) if apart else 0.0)
    return worst


def seconds(cupy: Any, before: Callable[[], None], work: Callable[[], None], repeats: int) -> float:
    """The median time of `work` on the device. `before` keeps it busy, so that it need not wait for the host."""
    times = []
    for turn in range(repeats + 3):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        before()
        start.record()
        work()
        stop.record()
        stop.synchronize()
        if turn >= 3:
            times.append(cupy.cuda.get_elapsed_time(start, stop) / 1e3)
    return median(times)


def measure(kernels: Kernels, case: Case, elements: int, repeats: int) -> dict[str, Any]:
    """Bandwidth on large arrays, which are the same before each launch."""
    cupy = kernels.xp
    given, scalars = case.make(elements)
    device = arguments(cupy, given)
    kept = [each.copy() if isinstance(each, cupy.ndarray) else None for each in device]

    def restore() -> None:
        for each, copy in zip(device, kept, strict=True):
            if copy is not None:
                each[...] = copy

    took = seconds(cupy, restore, lambda: call(kernels, case.name, device, scalars), repeats)
    moved = case.traffic(given)
    return {"kernel": case.name + case.how, "bytes": moved, "seconds": took, "gigabytes_per_second": moved / took / 1e9}


def copy_speed(cupy: Any, elements: int, repeats: int) -> float:
    """GB/s of a device-to-device copy, read and written bytes counted."""
    source, target = cupy.zeros(elements, np.float32), cupy.empty(elements, np.float32)

    def copy() -> None:
        target[...] = source

    return 8 * elements / seconds(cupy, copy, copy, repeats) / 1e9


def main() -> int:
    """Print the table; exit status 1 when a kernel is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=1 << 26)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json")
    options = parser.parse_args()
    import cupy

    kernels = Kernels(cupy)
    device = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    copy = copy_speed(cupy, options.elements, options.repeats)
    print(f"{device}, CuPy {cupy.__version__}; a copy of {4 * options.elements / 1e6:,.0f} MB moves {copy:,.0f} GB/s\n")
    print("| kernel | µs | GB/s | of a copy | apart from its reference |\n|---|---|---|---|---|")
    results: list[dict[str, Any]] = []
    report = {"device": device, "copy_gigabytes_per_second": copy, "kernels": results}
    for case in CASES:
        apart = error(kernels, case)
        each = measure(kernels, case, options.elements, options.repeats)
        each |= {"of_copy": each["gigabytes_per_second"] / copy, "apart": apart, "right": apart <= case.tolerance}
        results.append(each)
        differs = (f"{apart:.1e}" if apart else "equal bits") + ("" if each["right"] else " WRONG")
        speed = f"{each['gigabytes_per_second']:,.0f} | {each['of_copy']:.2f}"
        print(f"| {each['kernel']} | {each['seconds'] * 1e6:,.1f} | {speed} | {differs} |", flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(each["right"] for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
