"""A training loop of the user's own, on many ranks: `mpitrain.distribute`."""

from collections.abc import Callable
from numbers import Integral
from pathlib import Path

import numpy as np
import torch
from msgspec.structs import replace

from mpitrain.algorithms import ALGORITHMS
from mpitrain.algorithms.interface import Algorithm
from mpitrain.api.loop.averages import Attracted, Averages
from mpitrain.api.loop.gradients import Gradients
from mpitrain.api.loop.increments import Increments
from mpitrain.api.loop.method import Attendance, Method, TheirOptimizer
from mpitrain.api.loop.module import FlatModule
from mpitrain.api.loop.ranks import Ranks
from mpitrain.api.loop.record import RunRecord
from mpitrain.api.options import folder_of
from mpitrain.config import Config, resolve
from mpitrain.errors import BadInput, nearest
from mpitrain.models.torch import state as torch_state
from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import agreed, called_alike
from mpitrain.start import DEADLINE

#: The method that carries out the algorithms of each protocol around a user's loop.
METHODS: dict[str, Callable[[Transport, FlatModule, Attendance, Algorithm], Method]] = {
    "synchronous": Gradients,
    "model-averaging": Averages,
    "server": Attracted,
    "peers": Increments,
}


def distribute(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    algorithm: str = "block-momentum",
    *,
    out: str | Path | None = None,
    seed: int = 1,
    deadline: float = DEADLINE,
    **options: object,
) -> Ranks:
    """Train `model` on all ranks by one's own loop:

        with mpitrain.distribute(model, optimizer, algorithm="block-momentum", tau=64) as ranks:
            for inputs, targets in ranks.share(loader):
                optimizer.zero_grad(); loss(model(inputs), targets).backward(); optimizer.step()

    All ranks call this together, with the same arguments; without mpirun it is one rank. `algorithm` is "allreduce",
    "block-momentum", "easgd", "easgd-sync" or "sparse-delta", and `options` are the keys of its table [algorithm]; the
    local step is `optimizer`'s. `out` is the run folder, by default a new one under runs/; `seed` determines the order
    of samples; `deadline`: seconds without a sign of life after which a rank is named, and the job ends.

    Ranks start from rank 0's parameters and buffers, and all hold the same model after the block. Within it the
    parameters are views of one vector, which .to(), .half() and the like must not replace. An exception on one rank
    ends the job. Raises BadInput naming argument, key or parameter.
    """

    def start(transport: Transport, attendance: Attendance) -> tuple[FlatModule, Method, RunRecord]:
        flat, config = agreed(transport, prepared, "the models")
        called_alike(transport, call, "the models")
        flat.start_together(transport)
        record = agreed(transport, lambda: RunRecord(transport, config, folder_of("out", out)), "the folder")
        algorithm = replace(config.algorithm, chosen=TheirOptimizer())
        return flat, METHODS[algorithm.protocol](transport, flat, attendance, algorithm), record

    def prepared() -> tuple[FlatModule, Config]:
        require_arguments(out, seed, deadline)
        config = resolved(algorithm, options)
        flat = FlatModule(model, optimizer)
        config.algorithm.check_loop(flat.one_rate)
        torch_state.unfold(model)
        return flat, config

    told = {"algorithm": algorithm, "seed": seed, **options}
    call = f"distribute({', '.join(f'{name}={told[name]!r}' for name in sorted(told))})"
    return Ranks(start, seed, deadline if _is_deadline(deadline) else DEADLINE)  # until all ranks refuse it


def require_arguments(out: object, seed: object, deadline: object) -> None:
    """Raise BadInput naming the argument that is invalid."""
    folder_of("out", out)
    if not isinstance(seed, Integral) or not 0 <= int(seed) < 1 << 63:
        raise BadInput(f"seed = {seed!r}: expected a whole number from 0 to 2^63 - 1")
    if not _is_deadline(deadline):
        raise BadInput(f"deadline = {deadline!r}: expected seconds, more than 0 and at most 1e9")


def _is_deadline(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value <= 1e9


def resolved(name: object, options: dict[str, object]) -> Config:
    """The configuration of these options. Raises BadInput naming the key, or the algorithm that does not fit."""
    fitting = [each for each, kind in ALGORITHMS.items() if kind.loop_keys]
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise BadInput(f"algorithm = {name!r}: unknown{nearest(str(name), fitting)}")
    kind = ALGORITHMS[name]
    if name not in fitting:
        raise BadInput(f"algorithm = {name!r}: not for a loop of one's own: {kind.loop_instead}")
    own = kind.loop_defaults
    options = {key: value.item() if isinstance(value, np.generic) else value for key, value in options.items()}
    config = resolve({**own, "algorithm": {"name": name, **own.get("algorithm", {}), **options}})
    for key in options.keys() - set(kind.loop_keys):
        raise BadInput(f"algorithm.{key}: not in a loop of one's own, where {name} has {', '.join(kind.loop_keys)}")
    return config
