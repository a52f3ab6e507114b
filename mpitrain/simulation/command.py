"""`mpitrain simulate`: what `train` does, on a cluster that a file describes, in one process and in virtual time."""

import argparse
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from threadpoolctl import threadpool_limits

from mpitrain.api.options import TrainOptions, from_arguments
from mpitrain.api.train import train_on
from mpitrain.errors import BadInput
from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import alone
from mpitrain.signals import Stop
from mpitrain.simulation import cluster
from mpitrain.simulation.clusters import find
from mpitrain.simulation.job import Aborted, Job
from mpitrain.simulation.replaying import replay
from mpitrain.simulation.scheduler import Deadlock

MOST = 2000  # ranks, each of which is a thread


def run(options: argparse.Namespace) -> int:
    """Simulate, or replay; the exit status."""
    why = "simulate runs without mpirun: one process has all the ranks"
    if options.trace:
        options.set.append("run.trace=true")
    if options.replay is not None:
        return alone(lambda: replay(options), why)
    return alone(lambda: _simulated(options, find(options.cluster)), why)


def _simulated(options: argparse.Namespace, cluster: Path) -> int:
    if options.density is not None and not 0 < options.density <= 1:
        raise BadInput(f"--density {options.density:g}: above 0 and at most 1")
    told = replace(from_arguments(options), phantom=options.phantom, density=options.density or 0.0)
    return simulate(told, cluster, options.ranks)


def simulate(options: TrainOptions, path: Path, ranks: int | None) -> int:
    """Train on simulated ranks; the exit status. Raises BadInput."""
    described = cluster.read(path)
    count = described.places if ranks is None else ranks
    _require_places(path, count, described.places)
    network, nodes = described.network(), described.nodes_of(count)
    paces, stops = described.pace(), described.stops()
    job = Job[int](count, network, nodes, paces, described.cores_per_node, stops=stops, work=described.work())
    requests = [Stop() for _ in range(count)]

    def program(transport: Transport) -> int:
        return train_on(transport, options, requests[transport.rank])

    # A signal reaches one rank, as in a real job: it tells the others. What computing costs, the cluster's file says.
    with requests[0].listening(), threadpool_limits(1), _rare_collections():
        try:
            return max(job.run(program))
        except Aborted as error:
            return error.status
        except Deadlock as error:
            print(f"mpitrain: nobody can go on: {error}", file=sys.stderr)
            return 1


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Context in which Python looks seldom for cycles: the objects of a thousand ranks would be gone through often."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _require_places(path: Path, ranks: int, places: int) -> None:
    if ranks < 1:
        raise BadInput(f"--ranks {ranks}: at least 1")
    if ranks > places:
        raise BadInput(f"--ranks {ranks}: {path} has room for {places}")
    if ranks > MOST:
        raise BadInput(f"--ranks {ranks}: at most {MOST} can be simulated")
