"""What the sparse delta exchange costs: the pass over the residual against `r += g`, and the message forms.

    OPENBLAS_NUM_THREADS=1 python benchmarks/codec/exchange.py [REPETITIONS] [WEIGHTS]

One process, one core. Methods take turns within a repetition, each from the same residual; medians are printed.
"""

import sys
from collections.abc import Callable
from functools import partial
from math import log2
from statistics import median
from time import perf_counter

import numpy as np
from numba import njit

from mpitrain.compression import golomb_rice
from mpitrain.compression.message import CODECS, WireForm
from mpitrain.compression.replica import apply
from mpitrain.compression.residual import SIGN, Entries, accumulate
from mpitrain.flat import Array

SIZE = 14_600_000  # weights of Strom's network
THRESHOLD = 1.5
SCALE = 256


def medians(
    repetitions: int, methods: dict[str, Callable[[], object]], prepare: Callable[[], None]
) -> dict[str, float]:
    """Median seconds of each method, all taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for repetition in range(repetitions + 1):
        for name, method in methods.items():
            prepare()
            start = perf_counter()
            method()
            if repetition:  # the first compiles and touches the buffers
                seconds[name].append(perf_counter() - start)
    return {name: median(values) for name, values in seconds.items()}


def numpy_passes(residual: Array, gradient: Array) -> Array:
    """The exchange step by whole-array operations."""
    residual += SCALE * gradient
    indices = np.flatnonzero(np.abs(residual) > THRESHOLD)
    positive = residual[indices] > 0
    residual[indices] -= np.where(positive, np.float32(THRESHOLD), np.float32(-THRESHOLD))
    return indices.astype(np.uint32) | np.where(positive, np.uint32(0), SIGN)


@njit(nogil=True)
def one_loop(residual, gradient, words, scale, threshold):  # type: ignore[no-untyped-def]
    """The exchange step by the obvious loop."""
    count = 0
    for i in range(residual.size):
        value = residual[i] + scale * gradient[i]
        if value > threshold:
            value -= threshold
            words[count] = np.uint32(i)
            count += 1
        elif value < -threshold:
            value += threshold
            words[count] = np.uint32(i) | SIGN
            count += 1
        residual[i] = value
    return count


def steady_state(density: float, rng: np.random.Generator, size: int = SIZE) -> tuple[Array, Array]:
    """A residual and a gradient after which a share `density` of the elements exceeds the threshold."""
    start = rng.uniform(-0.9 * THRESHOLD, 0.9 * THRESHOLD, size).astype(np.float32)
    gradient = rng.standard_normal(size, np.float32) * np.float32(0.001 / SCALE)
    sent = rng.random(size) < density
    start[sent] = np.copysign(np.float32(0.999 * THRESHOLD), start[sent])
    gradient[sent] = np.copysign(np.float32(0.1 / SCALE), start[sent])
    return start, gradient


def exchange_step(repetitions: int, size: int) -> None:
    """Residual add, threshold and pack, by density, in multiples of `r += g`."""
    words, wires = np.empty(size, np.uint32), {codec: WireForm(size, 1, codec) for codec in CODECS}
    out = np.empty(wires["auto"].capacity, np.uint8)
    for density in (0.0, 1e-4, 1e-3, 1e-2, 1e-1):
        start, gradient = steady_state(density, np.random.default_rng(1), size)
        residual = start.copy()

        def step(codec: str | None, residual: Array, gradient: Array) -> None:
            k = accumulate(residual, gradient, words, scale=SCALE, threshold=THRESHOLD, limit=8 * THRESHOLD)
            if codec:
                wires[codec].encode(Entries(words[:k]), 0, 0, 1000, THRESHOLD, out)

        methods: dict[str, Callable[[], object]] = {
            "r += g": partial(np.add, residual, gradient, out=residual),
            "NumPy passes": partial(numpy_passes, residual, gradient),
            "one loop": partial(one_loop, residual, gradient, words, np.float32(SCALE), np.float32(THRESHOLD)),
            "accumulate": partial(step, None, residual, gradient),
            **{f"accumulate, {codec}": partial(step, codec, residual, gradient) for codec in CODECS},
        }
        times = medians(repetitions, methods, partial(np.copyto, residual, start))
        print(f"\ndensity {density:g}")
        for name, seconds in times.items():
            print(f"  {name:24} {1e3 * seconds:8.2f} ms  {seconds / times['r += g']:6.2f}")


def theory(density: float) -> tuple[float, float]:
    """Bits an element, sign included: the best Golomb–Rice code of geometric gaps, and their entropy."""
    quotients = ((1 - density) ** 2**k for k in range(31))
    rice = min(k + 2 + q / (1 - q) for k, q in enumerate(quotients) if q < 1)
    return rice, 1 - log2(density) - (1 - density) / density * log2(1 - density)


def message_forms(repetitions: int, size: int) -> None:
    """Size, and time to encode, to decode and to apply, for random positions."""
    rng = np.random.default_rng(2)
    counts, weights = np.zeros(size, np.int32), np.zeros(size, np.float32)
    print("\ndensity  codec         bits/el.  theory  entropy  k   encode ms  M el./s   decode ms  M el./s  apply ms")
    for density in (1e-5, 1e-4, 1e-3, 1e-2, 1e-1):
        words = np.flatnonzero(rng.random(size) < density).astype(np.uint32)
        words |= rng.integers(0, 2, words.size, np.uint32) << np.uint32(31)
        for codec in CODECS:
            wire = WireForm(size, 1, codec)
            encode = partial(wire.encode, Entries(words), 0, 0, 1000, THRESHOLD, np.empty(wire.capacity, np.uint8))
            message = encode().copy()
            methods: dict[str, Callable[[], object]] = {
                "encode": encode,
                "decode": partial(wire.decode, message, 0),
                "apply": partial(apply, words, 1, counts, weights),
            }
            encoding, decoding, applying = medians(repetitions, methods, lambda: None).values()
            rice, entropy = theory(density)
            print(
                f"{density:7g}  {codec:12} {8 * (message.size - 56) / words.size:9.2f} {rice:7.2f} {entropy:8.2f}"
                f"  {golomb_rice.parameter(words):2} {1e3 * encoding:10.3f} {size / encoding / 1e6:9.0f}"
                f" {1e3 * decoding:10.3f} {size / decoding / 1e6:9.0f} {1e3 * applying:9.3f}"
            )


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]] + [15, SIZE][len(sys.argv) - 1 :]
    exchange_step(*numbers)
    message_forms(*numbers)
