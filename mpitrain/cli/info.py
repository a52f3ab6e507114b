"""`info`: print the environment that this program finds. Run it first on a new cluster."""

import argparse
import platform
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

from mpitrain import __version__
from mpitrain.cli.check import advice, measure
from mpitrain.cli.train import refuse
from mpitrain.device import available, describe, why_staged
from mpitrain.errors import some
from mpitrain.mpi import Transport, abort_on_exception, cuda_aware, library
from mpitrain.mpi.agreement import agreed, ending_together
from mpitrain.mpi.enduring import NEEDED, tolerant
from mpitrain.start import usable_cores

#: The exchanges for which a CUDA-aware MPI reads and writes GPU memory directly.
DIRECT = "collectives, and the messages of the server's and the elastic algorithms,"
ENDURES = "the others can go on: run.lost_ranks = 'continue'"


def run(options: argparse.Namespace) -> int:
    """Print versions, the MPI library, where the ranks are and how they would exchange vectors. With --check, measure
    and advise as well, reading from --data and writing to --out. Returns the exit status."""
    if not options.check and (options.data or options.out):
        return refuse("--data, --out: only --check reads and writes")
    abort_on_exception()
    transport = Transport(deadline=60.0)
    number = transport.threads(0)
    here = f"{platform.node()} local rank {transport.local_rank} of {transport.local_size}"
    can = f"{some(usable_cores(), 'core')}, {some(number, 'thread')} in a training"
    places = transport.gather_texts(f"{here}, {can}", "the ranks' places")
    passive = transport.progresses_passively() if transport.size > 1 else True
    aware, source = cuda_aware()
    staged = why_staged(transport, available(), aware, source)
    if transport.rank == 0:
        for name, value in _facts(transport, passive, staged):
            print(f"{name:<18} {value}")
        for rank, place in enumerate(places):
            print(f"{f'rank {rank}':<18} {place}", flush=True)
    if not options.check:
        transport.leave()
        return 0
    return ending_together(transport, lambda: _check(transport, number, passive, options.data, options.out))


def _check(transport: Transport, number: int, passive: bool, data: Path | None, out: Path | None) -> int:
    found = agreed(transport, lambda: measure(transport, number, passive, data, out), "the check", calls_mpi=True)
    if transport.rank == 0:
        for name, value in found.lines():
            print(f"{name:<18} {value}")
        for line in advice(found):
            print(f"advice: {line}")
    return 0


def _facts(transport: Transport, passive: bool, staged: str) -> list[tuple[str, str]]:
    blas = next((lib for lib in threadpool_info() if lib["user_api"] == "blas"), None)
    apart = "one-sided (reads; gradients by message)" if passive else "messages"
    exchange = "shared (memory of the node)" if transport.nodes == 1 else apart
    aware, source = cuda_aware()
    why = f", for {staged}" if aware else ""
    way = f"a GPU's vectors are staged in pinned memory{why}" if staged else f"{DIRECT} go from GPU memory"
    return [
        ("mpitrain", f"{__version__}, Python {platform.python_version()}, NumPy {np.__version__}"),
        ("BLAS", f"{blas['internal_api']} {blas['version']}" if blas else "unknown"),
        ("MPI", library()),
        ("ranks", f"{transport.size} on {some(transport.nodes, 'node')}"),
        ("one-sided reads", "served while the target computes" if passive else "wait until the target enters MPI"),
        ("a lost rank", f"ends the job; the others can go on under {NEEDED}" if not tolerant() else ENDURES),
        ("exchange", exchange if staged else "messages from GPU memory"),
        ("GPU", describe()),
        ("CUDA-aware MPI", f"{'yes' if aware else 'no'} ({source}): {way}; run.cuda_aware overrides it"),
    ]
