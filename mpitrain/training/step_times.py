"""The ways to compute a network and their times for a step: for `"auto"` of `model.backend` and `run.matmul`.

Times are kept in the user's cache folder, in a file for each network, processor and versions.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from mpitrain import __version__
from mpitrain.config import Config
from mpitrain.errors import BadInput, reason, say
from mpitrain.files import checksum, read_whole, sealed_json, unsealed_json, write_whole
from mpitrain.flat import Array
from mpitrain.models.model import Consumer, Draws, Model
from mpitrain.models.network import warm
from mpitrain.models.torch import start as torch_start
from mpitrain.sampling.batch import Batch, SampleForm
from mpitrain.sampling.rng import stream
from mpitrain.start import processor, users_cache
from mpitrain.training.inputs import network_of
from mpitrain.training.run_code import sums
from mpitrain.training.user_code import Code

SECONDS, ROUNDS = 2.0, 9  # for all steps together, and how often each is timed, at most
SHARE = 16  # the first steps, from which the time for more samples follows, take a minibatch divided by this
NEARLY = 1.02  # a time of up to this times the shortest counts as equally good

Step = Callable[[int], object]  #: a step on so many samples


class Way(NamedTuple):
    """Values of `model.backend` and `run.matmul` by which a network can be computed on a CPU."""

    backend: str
    matmul: str

    def __str__(self) -> str:
        return "NumPy" if self.backend == "numpy" else "PyTorch" + " in bf16" * (self.matmul == "bf16")

    def of(self, config: Config) -> Config:
        """The configuration with these values."""
        model, run = replace(config.model, backend=self.backend), replace(config.run, matmul=self.matmul)
        return replace(config, model=model, run=run)


class StepTimes(msgspec.Struct, frozen=True):
    """The seconds of a step by each of some ways, on this many samples; `of` is what they depend on."""

    samples: int
    seconds: list[Annotated[float, msgspec.Meta(gt=0)]]
    of: str = ""

    @property
    def fastest(self) -> int:
        """The index of the first way that takes nearly the shortest time."""
        return next(number for number, each in enumerate(self.seconds) if each <= NEARLY * min(self.seconds))


def ways(config: Config) -> list[Way]:
    """The ways among which the configuration leaves the choice, the simplest first; in float64 without bf16."""
    backends = ("numpy", "torch") if config.model.backend == "auto" else (config.model.backend,)
    auto, in_bf16 = config.run.matmul == "auto", "torch" in backends and config.training.dtype == "float32"
    plain = [Way(each, "float32" if auto else config.run.matmul) for each in backends]
    return [*plain, Way("torch", "bf16")] if auto and in_bf16 else plain


def slowest(found: Sequence[StepTimes]) -> StepTimes:
    """The times of steps by each way on the slowest of some ranks."""
    return replace(found[0], seconds=np.max([each.seconds for each in found], axis=0).tolist())


def steps(
    config: Config,
    of: Sequence[Way],
    form: SampleForm,
    classes: int,
    threads: int,
    code: Mapping[str, Code] | None = None,
    given: Callable[..., object] | None = None,
) -> list[Step]:
    """A gradient of the network by each way, on at most a whole minibatch. Raises BadInput as `network_of` does."""
    models = [network_of(way.of(config), form, classes, code=code, given=given) for way in of]
    torch_start.limit_threads(threads)
    theta = models[0].initial(config.initial_seed, config.training.dtype)
    gradient, draw = np.empty_like(theta), stream(0, "step times")
    batch = form.drawn(config.training.minibatch, theta.dtype, classes, draw)
    consumer = Consumer(gradient, lambda part, values: None)

    def step(model: Model, count: int) -> float:
        part = Batch(batch.inputs[:count], batch.targets[:count])
        return float(model.loss_and_gradient(theta, gradient, part, Draws(stream(0, "dropout")), consumer))

    for model in models:
        warm(model, theta.dtype)
    return [partial(step, model) for model in models]


def timed(
    of: str, all_steps: Sequence[Step], samples: int, clock: Callable[[], float] = time.perf_counter
) -> StepTimes:
    """The times of steps on this many samples: the shortest of several turns, as least disturbed by other programs.

    If there is no time for that many samples, steps on a few of them and on more are timed, and the line through both
    times is extrapolated. The second number is at least twice the first, even if the time is used up, since much of a
    step may take equally long for any number of samples.
    """
    began, few = clock(), max(1, samples // SHARE)

    def turn(count: int) -> Array:
        instants = [clock()]
        for step in all_steps:
            step(count)
            instants.append(clock())
        return np.maximum(np.diff(instants), 1e-9)

    turn(few)  # allocates
    least = turn(few)
    count = min(samples, max(2 * few, int(few * (SECONDS - (clock() - began)) / least.sum())))
    turns = [turn(count)]
    while len(turns) < ROUNDS and clock() - began + turns[-1].sum() <= SECONDS:
        turns.append(turn(count))
    most = np.min(turns, axis=0)
    each = np.maximum(most - least, 0) / max(count - few, 1)
    return StepTimes(samples, (most + (samples - count) * each).tolist(), of)


# ---- times that are kept


def key_of(config: Config, of: Sequence[Way], code: Mapping[str, Code], *seen: object) -> str:
    """What times depend on: the network, processor and versions, and what else is `seen`, such as the form of samples
    and the number of threads. "" for a network of code that nothing identifies, whose times are not kept."""
    own = sums({key: each for key, each in code.items() if key.startswith("model.")})
    if config.model.import_ and not (own.get("model.import") and all(own.values())):
        return ""
    torch = metadata.version("torch") if any(way.backend == "torch" for way in of) else ""
    known = {key: value for key, value in processor().items() if "MHz" not in key and "mips" not in key.lower()}
    return repr((config.model, config.training.dtype, of, own, seen, known, __version__, np.__version__, torch))


def path_of(of: str) -> Path:
    """The file with the times for a key of `key_of`."""
    return users_cache("mpitrain") / "steps" / f"{checksum(of)}.json"


def read(of: str, count: int, aloud: bool = True) -> StepTimes | None:
    """The kept times of `count` ways, if there are any. A file that is damaged, or of something else, is ignored, which
    is said `aloud`."""
    path = path_of(of)
    try:
        kept = msgspec.convert(unsealed_json(read_whole(path)), StepTimes)
        if (kept.of, len(kept.seconds)) != (of, count):
            raise ValueError("is of something else")
        return kept
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        if aloud:
            say(f"{path}: {reason(error)}; the steps are timed anew")
        return None


def keep(times: StepTimes) -> None:
    """Write the file, if there can be one."""
    with suppress(BadInput):
        write_whole(path_of(times.of), sealed_json(msgspec.to_builtins(times)))
