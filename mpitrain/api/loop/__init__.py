"""A training loop of the user's own, on many ranks: `mpitrain.distribute`."""

from pathlib import Path

import torch

from mpitrain.algorithms import ALGORITHMS
from mpitrain.algorithms.block_momentum import BlockMomentum
from mpitrain.algorithms.elastic import Easgd
from mpitrain.algorithms.interface import Algorithm
from mpitrain.algorithms.synchronous import Allreduce
from mpitrain.api.loop.attendance import Attendance
from mpitrain.api.loop.averages import Attracted, Averages
from mpitrain.api.loop.gradients import Gradients
from mpitrain.api.loop.method import Method, with_their_optimizer
from mpitrain.api.loop.module import FlatModule
from mpitrain.api.loop.ranks import Ranks
from mpitrain.api.loop.record import RunRecord
from mpitrain.config import Config, resolve
from mpitrain.errors import BadInput, nearest
from mpitrain.mpi import Transport, abort_on_exception, refuse_in_one_line
from mpitrain.mpi.agreement import agreed
from mpitrain.start import DEADLINE

#: The algorithms that fit, and their keys that do; the others are the optimizer's, the loader's, or of a server.
FITTING = {
    "allreduce": ("bucket_mb",),
    "block-momentum": ("preset", "tau", "momentum", "rate", "look_ahead", "unit", "buffers"),
    "easgd": ("tau", "alpha", "beta", "rho"),
    "easgd-sync": ("tau", "alpha", "beta", "rho"),
}
#: Why others do not fit a loop of the user's own, and what does.
OTHERWISE = {
    "eamsgd": "its gradient belongs at x + δv, which the loop does not know; easgd with a momentum optimizer fits",
    "eamsgd-sync": "its gradient belongs at x + δv, which the loop does not know; easgd-sync with momentum fits",
    "hybrid": "it divides the layers over the ranks; allreduce fits",
    "sgd": "it trains on one rank; allreduce does the same on many",
}
SERVED = "its gradients go to a server, and here all ranks train; easgd, or allreduce, fits"


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
    "block-momentum", "easgd" or "easgd-sync", and `options` are the keys of its table [algorithm]; the local step is
    `optimizer`'s. `out` is the run folder, by default a new one under runs/; `seed` determines the order of samples;
    `deadline`: seconds without a sign of life after which a rank is named, and the job ends.

    Ranks start from rank 0's parameters and buffers, and all hold the same model after the block. Within it the
    parameters are views of one vector, which .to(), .half() and the like must not replace. An exception on one rank
    ends the job. Raises BadInput naming argument, key or parameter.
    """
    transport = Transport(deadline=deadline)
    if transport.size > 1:
        abort_on_exception()
    refuse_in_one_line()

    def start(transport: Transport, attendance: Attendance) -> tuple[FlatModule, Method, RunRecord]:
        flat, config = agreed(transport, prepared, "the models")
        flat.start_together(transport)
        record = agreed(
            transport, lambda: RunRecord(transport, config, None if out is None else Path(out)), "the folder"
        )
        return flat, method_of(config.algorithm, transport, flat, attendance), record

    def prepared() -> tuple[FlatModule, Config]:
        config = resolved(algorithm, options)
        flat = FlatModule(model, optimizer)
        if isinstance(config.algorithm, BlockMomentum):
            require_fitting(config.algorithm, flat)
        return flat, config

    return Ranks(transport, start, seed)


def resolved(algorithm: str, options: dict[str, object]) -> Config:
    """The configuration of these options. Raises BadInput naming the key, or the algorithm that does not fit."""
    if algorithm not in ALGORITHMS:
        raise BadInput(f"algorithm = {algorithm!r}: unknown{nearest(algorithm, list(FITTING))}")
    if algorithm not in FITTING:
        raise BadInput(f"algorithm = {algorithm!r}: not for a loop of one's own: {OTHERWISE.get(algorithm, SERVED)}")
    config = resolve({"algorithm": {"name": algorithm, **options}})
    for key in options.keys() - set(FITTING[algorithm]):
        raise BadInput(
            f"algorithm.{key}: not in a loop of one's own, where {algorithm} has {', '.join(FITTING[algorithm])}"
        )
    return config


def require_fitting(algorithm: BlockMomentum, flat: FlatModule) -> None:
    """Raise BadInput for what block momentum would need to know of the optimizer."""
    if algorithm.buffers != "kept":
        raise BadInput(f"algorithm.buffers = {algorithm.buffers!r}: the optimizer is yours; 'kept' fits")
    if algorithm.unit == "learning-rate" and not flat.one_rate:
        raise BadInput("algorithm.unit = 'learning-rate' (SlowMo): the optimizer's groups have different rates")


def method_of(algorithm: Algorithm, transport: Transport, flat: FlatModule, attendance: Attendance) -> Method:
    """What carries the algorithm out. Collective."""
    if isinstance(algorithm, Allreduce):
        return Gradients(transport, flat, attendance, algorithm.bucket_mb)
    kind = Attracted if isinstance(algorithm, Easgd) else Averages
    return kind(transport, flat, attendance, with_their_optimizer(algorithm))
