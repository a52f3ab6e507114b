"""`mpitrain simulate`: what `train` does, on a cluster that a file describes, in one process and in virtual time.

`--replay RUN`: the training of a run whose order of events was recorded, to the bit.
"""

import argparse
import gc
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from threadpoolctl import threadpool_limits

from mpitrain import config as configuration
from mpitrain.api.clusters import find
from mpitrain.api.options import TrainOptions, from_arguments
from mpitrain.api.train import train_on
from mpitrain.config import Config
from mpitrain.errors import BadInput, Overdue, say, some
from mpitrain.mpi.agreement import alone
from mpitrain.mpi.order import Order
from mpitrain.mpi.recording import made_by
from mpitrain.signals import Stop
from mpitrain.simulation import cluster
from mpitrain.simulation.job import Aborted, Job
from mpitrain.simulation.replay import Replay, read
from mpitrain.simulation.scheduler import Deadlock

#: Keys that do not change the training, and the key that says where the data is.
FREE = ("data.path", "run.out", "run.progress", "run.callback", "run.tensorboard", "run.trace", "run.checkpoints_kept")
MOST = 2000  # ranks, each of which is a thread


def run(options: argparse.Namespace) -> int:
    """Simulate, or replay; the exit status."""
    why = "simulate runs without mpirun: one process has all the ranks"
    if options.trace:
        options.set.append("run.trace=true")
    if options.replay is not None:
        return alone(lambda: replay(options), why)
    if options.density is not None and not 0 < options.density <= 1:
        raise BadInput(f"--density {options.density:g}: above 0 and at most 1")
    told = replace(from_arguments(options), phantom=options.phantom, density=options.density or 0.0)
    return alone(lambda: simulate(told, find(options.cluster), options.ranks), why)


def simulate(options: TrainOptions, path: Path, ranks: int | None) -> int:
    """Train on simulated ranks; the exit status. Raises BadInput."""
    described = cluster.read(path)
    count = described.places if ranks is None else ranks
    if count < 1:
        raise BadInput(f"--ranks {count}: at least 1")
    if count > described.places:
        raise BadInput(f"--ranks {count}: {path} has room for {described.places}")
    if count > MOST:
        raise BadInput(f"--ranks {count}: at most {MOST} can be simulated")
    options = replace(options, scale=lambda model: described.scale(model, path))
    job, requests = described.job(count), [Stop() for _ in range(count)]
    # A signal reaches one rank, as in a real job: it tells the others. What computing costs, the cluster's file says.
    with requests[0].listening(), threadpool_limits(1), _rare_collections():
        return _status(job, options, requests, "nobody can go on")


def _status(job: Job[int], options: TrainOptions, requests: Sequence[Stop], stuck: str) -> int:
    """Train on the ranks of a job; the exit status."""
    try:
        return max(job.run(lambda transport: train_on(transport, options, requests[transport.rank])))
    except Aborted as error:
        return error.status
    except (Overdue, Deadlock) as error:  # the first is of a rank that never started
        say(f"{stuck}: {error}" if isinstance(error, Deadlock) else error)
        return 1


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Context in which the garbage collector runs seldom: it would often traverse the objects of a thousand ranks."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def replay(options: argparse.Namespace) -> int:
    """Replay a run; the exit status. Raises BadInput."""
    run = Path(options.replay)
    for given, name in (
        (options.config, "a configuration"),
        (options.resume, "--resume"),
        (options.continued, "--continue"),
        (options.phantom, "--phantom"),
        (options.density, "--density"),
    ):
        if given:
            raise BadInput(f"--replay {run}: repeats the recorded training from its start: {name} does not fit")
    orders = read(run)
    header = orders[0].header
    if options.ranks not in (None, header.ranks):
        raise BadInput(f"--ranks {options.ranks}: {orders[0].path} is of {header.ranks} ranks")
    told = TrainOptions(
        out=options.out,
        replayed=options.replay,
        trust=options.trust,
        new_code=options.new_code,
        print_config=options.print_config,
        whole=configuration.to_toml(_config(orders[0], options.set)),
    )
    job = Replay(orders)
    with threadpool_limits(header.threads):
        status = _status(job, told, [Stop() for _ in orders], "what is recorded never comes")
    return status if options.print_config or status == 2 else _compared(orders, status, job.ranks[0].witness.parameters)


def _config(order: Order, overrides: list[str]) -> Config:
    """The recorded configuration, in which nothing may be changed that changes the training."""
    table = tomllib.loads(order.header.config)
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key not in FREE:
            raise BadInput(f"--set {key}: a replay is of the recorded training: only {', '.join(FREE)} may change")
        configuration.set_key(table, override)
    configuration.set_key(table, "run.record_order=false")
    return configuration.resolve(table)


def _compared(orders: list[Order], status: int, parameters: str) -> int:
    """The exit status, after a line that says that the parameters are the recorded ones, or else lines that say what
    they also depend on. `parameters` is "" if the replay has failed; why has been said."""
    first, events = orders[0], sum(order.end.events for order in orders)
    if (parameters, status) == (first.end.parameters, first.end.reason):
        ranks = some(len(orders), "rank")
        print(f"{events:,} events of {ranks} repeated: the parameters are the recorded ones, to the bit")
        return status
    if parameters:
        say(f"{first.path}: the parameters after the same {events:,} events differ")
    then, now = first.header.by, made_by()
    say(f"{first.path}: recorded by {then}; this is {'the same' if now == then else now}")
    return 1
