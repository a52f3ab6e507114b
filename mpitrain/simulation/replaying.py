"""`mpitrain simulate --replay RUN`: the training of a run whose order of events was recorded, to the bit."""

import argparse
import sys
import tomllib
from pathlib import Path

from threadpoolctl import threadpool_limits

from mpitrain import config as configuration
from mpitrain.api.options import TrainOptions
from mpitrain.api.train import train_on
from mpitrain.config import Config
from mpitrain.errors import BadInput, some
from mpitrain.mpi import Transport
from mpitrain.mpi.order import Order
from mpitrain.signals import Stop
from mpitrain.simulation.job import Aborted
from mpitrain.simulation.replay import Replay, read
from mpitrain.simulation.scheduler import Deadlock

#: Keys that change nothing in what is trained, or where the data is.
FREE = ("data.path", "run.out", "run.progress", "run.tensorboard", "run.trace", "run.checkpoints_kept")


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
    return _replay(orders, _config(orders[0], options.set), options)


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


def _replay(orders: list[Order], config: Config, options: argparse.Namespace) -> int:
    job = Replay(orders)
    told = TrainOptions(
        out=options.out,
        replayed=options.replay,
        trust=options.trust,
        new_code=options.new_code,
        print_config=options.print_config,
        whole=configuration.to_toml(config),
    )

    def program(transport: Transport) -> int:
        return train_on(transport, told, Stop())

    with threadpool_limits(orders[0].header.threads):
        try:
            status = max(job.run(program))
        except Aborted as error:
            return error.status
        except Deadlock as error:
            print(f"mpitrain: what is recorded never comes: {error}", file=sys.stderr)
            return 1
    if options.print_config or status == 2:  # bad input, which has been said
        return status
    return _compared(orders, status, job.ranks[0].witness.parameters)


def _compared(orders: list[Order], status: int, parameters: str) -> int:
    """The exit status, after a line that says whether the parameters are the recorded ones."""
    first, events = orders[0], sum(order.end.events for order in orders)
    if (parameters, status) != (first.end.parameters, first.end.reason):
        line = f"{first.path}: the parameters after the same {events:,} events differ ({first.header.by})"
        print(f"mpitrain: {line}", file=sys.stderr)
        return 1
    ranks = some(len(orders), "rank")
    print(f"{events:,} events of {ranks} repeated: the parameters are the recorded ones, to the bit")
    return status
