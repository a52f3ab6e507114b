"""Seconds an iteration of schemes a, b, c and of `allreduce`, what they hide, and what the α–β model predicts.

    OPENBLAS_NUM_THREADS=1 mpirun -n 2 python benchmarks/hybrid/iteration.py [--minibatch 32] [--iterations 12]
    python benchmarks/twohosts/twohosts.py --rate 1gbit python benchmarks/hybrid/iteration.py

All on the same network and the same examples a rank, in one process a rank. "waiting" are the iterations with
algorithm.overlap = false, every message waited for at once; "hidden" is the share of communication time that the rank
spent computing. The computing that the model starts from is measured in the waiting iterations, without their waits.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import model
import numpy as np
import workload
from mpi4py import MPI
from threadpoolctl import threadpool_limits

from mpitrain.models.network import Network
from mpitrain.mpi import Transport
from mpitrain.protocols import hybrid, synchronous

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from launch import require_ranks

WARM = 3


class Phases:
    """Seconds that a trainer spends computing in each phase: the time it takes less the time it waits."""

    def __init__(self, trainer: hybrid.HybridStepper) -> None:
        self.seconds = {"forward": 0.0, "connected": 0.0, "backward": 0.0}
        self._transfers = trainer.transfers
        trainer.shared.forward = self._timed("forward", trainer.shared.forward)  # type: ignore[method-assign]
        trainer.connected.run = self._timed("connected", trainer.connected.run)  # type: ignore[method-assign]
        trainer.shared.backward = self._timed("backward", trainer.shared.backward)  # type: ignore[method-assign]

    def _timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began, waited = time.perf_counter(), self._transfers.waited
            result = function(*arguments)
            self.seconds[phase] += time.perf_counter() - began - (self._transfers.waited - waited)
            return result

        return timed

    def computing(self, iterations: int, seconds: float) -> model.Computing:
        """The means of an iteration, of which `seconds` in all were spent computing."""
        means = {phase: total / iterations for phase, total in self.seconds.items()}
        return model.Computing(**means, rest=seconds - sum(means.values()))


def steps(transport: Transport, stepper: Any, iterations: int) -> float:
    """Median seconds of a step over the ranks' common iterations."""
    times = []
    for _ in range(iterations):
        work = stepper.next_work()
        transport.barrier("the others")
        began = time.perf_counter()
        stepper.step(work)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def scheme(transport: Transport, net: Network, name: str, options: argparse.Namespace, overlap: bool) -> dict[str, Any]:
    """One way of training, measured."""
    settings = ["algorithm.name=hybrid", f"algorithm.scheme={name}", f"algorithm.overlap={str(overlap).lower()}"]
    total = WARM + options.iterations
    trainer = hybrid.HybridStepper(workload.session(transport, net, options.minibatch, total, *settings))
    steps(transport, trainer, WARM)
    transfers, phases = trainer.transfers, Phases(trainer)
    before, seconds, waited = dict(transfers.received), transfers.seconds, transfers.waited
    median = steps(transport, trainer, options.iterations)
    received = {kind: (count - before[kind]) // options.iterations for kind, count in transfers.received.items()}
    hidden = 1 - (transfers.waited - waited) / (transfers.seconds - seconds)
    computing = phases.computing(options.iterations, median - (transfers.waited - waited) / options.iterations)
    return {"seconds": median, "hidden": hidden, "received": received, "computing": computing}


def data_parallel(transport: Transport, net: Network, options: argparse.Namespace) -> float:
    """Seconds an iteration of `allreduce`; of plain SGD where the transport has one rank."""
    name = "algorithm.name=allreduce" if transport.size > 1 else "algorithm.name=msgd"
    settings = [name, "algorithm.nesterov=false"]
    stepper = synchronous.AllreduceStepper(
        workload.session(transport, net, options.minibatch, WARM + options.iterations, *settings)
    )
    steps(transport, stepper, WARM)
    return steps(transport, stepper, options.iterations)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minibatch", type=int, default=32)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--side", type=int, default=67)
    parser.add_argument("--width", type=float, default=0.5)
    options = parser.parse_args()
    require_ranks(2, or_more=True)
    transport = Transport()
    say = print if transport.rank == 0 else lambda *words, **more: None
    net = workload.network(options.side, options.width)
    shared, all_of_it = net.slices[net.split].start, net.layout.size
    link, ranks = model.measured_network(transport), transport.size
    say(f"{all_of_it:,} weights, {1 - shared / all_of_it:.1%} fully connected")
    say(f"{ranks} ranks of {options.minibatch} examples")
    say(f"link: alpha {link.alpha * 1e6:.0f} us, {1e-6 / link.beta:.0f} MB/s", flush=True)
    alone = data_parallel(Transport(MPI.COMM_SELF), net, options)
    together = data_parallel(transport, net, options)
    say(f"{'':10} {'seconds':>8} {'waiting':>8} {'hidden':>7} {'predicted':>9} {'MB received':>11}  against allreduce")
    volume = 2 * (ranks - 1) / ranks * 4e-6 * all_of_it
    predicted = model.allreduce(ranks, alone, all_of_it, link)
    say(f"{'allreduce':10} {together:8.3f} {'':8} {'':7} {predicted:9.3f} {volume:11.2f}", flush=True)
    for name in "abc":
        waiting = scheme(transport, net, name, options, overlap=False)
        ours = scheme(transport, net, name, options, overlap=True)
        predicted = model.hybrid(name, ranks, waiting["computing"], ours["received"], link)
        seconds, hidden, mb = ours["seconds"], ours["hidden"], sum(ours["received"].values()) / 1e6
        say(
            f"{name:10} {seconds:8.3f} {waiting['seconds']:8.3f} {hidden:7.0%} {predicted:9.3f} {mb:11.2f}"
            f"  {together / seconds:.2f} x",
            flush=True,
        )
    transport.leave()


if __name__ == "__main__":
    with threadpool_limits(1), np.errstate(all="ignore"):
        main()
