"""What do ranks that share a GPU gain when MPI takes vectors from its memory, instead of from the host's?

    mpirun -n 2 python benchmarks/gpu/passing.py [--bytes 1024 ...] [--repeats 10] [--json FILE]

Directly and staged by the host, in turns: a message from rank 0 to rank 1 and back, and a sum over all ranks. Median
times, and the vector's bytes by them. With an MPI that is not CUDA-aware, only staged.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from launch import require_ranks

from mpitrain.device import available, choose, describe
from mpitrain.flat import Array
from mpitrain.mpi import Transport, cuda_aware, library
from mpitrain.mpi.tags import Tag


def there_and_back(device: Any, transport: Transport, vector: Array, direct: bool) -> None:
    """Rank 0 sends the vector to rank 1, which sends it back."""
    host = vector if direct else device.host_like(vector)

    def send(to: int) -> None:
        if not direct:
            device.download(vector, host)
        transport.wait(transport.begin_send(to, Tag.VECTOR, host), "the vector", [to])

    def receive(source: int) -> None:
        transport.wait(transport.begin_receive(source, Tag.VECTOR, host), "the vector", [source])
        if not direct:
            device.upload(vector, host)
        device.compute.synchronize()

    if transport.rank == 0:
        send(1)
        receive(1)
    elif transport.rank == 1:
        receive(0)
        send(0)


def summed(device: Any, transport: Transport, vector: Array, direct: bool) -> None:
    """A sum of all ranks' vectors, on the device."""
    transport.sum(vector, "the sum")
    device.compute.synchronize()


def main() -> None:
    """One table, and one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, nargs="+", default=[1 << 10, 1 << 16, 1 << 20, 1 << 24, 58_000_000])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--cuda-aware", choices=("auto", "yes", "no"), default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    require_ranks(2, or_more=True)
    plain = Transport(deadline=60.0)
    if not available():
        raise SystemExit(f"passing.py: wants a GPU ({describe()})")
    device = choose("gpu", "tf32", plain.local_rank)
    aware, source = cuda_aware(options.cuda_aware)
    ways: dict[str, tuple[bool, Transport]] = {}
    for direct in (False, True) if aware else (False,):
        device.direct = direct
        ways["direct" if direct else "staged"] = direct, device.transport(plain)
    first, results = plain.rank == 0, []
    if first:
        print(f"{device}; {plain.size} ranks; {library()}; CUDA-aware: {aware} ({source})\n")
        print("| | bytes | staged | direct |\n|---|---|---|---|", flush=True)
    tasks: dict[str, Callable[..., None]] = {"message": there_and_back, "sum": summed}
    for name, task in tasks.items():
        for nbytes in options.bytes:
            vector = device.to_device(np.ones(nbytes // 4, np.float32))
            times: dict[str, list[float]] = {way: [] for way in ways}
            for repeat in range(options.repeats + 2):
                for way, (direct, transport) in ways.items():
                    vector[:] = 1
                    device.compute.synchronize()
                    plain.barrier("the others")
                    began = perf_counter()
                    task(device, transport, vector, direct)
                    if repeat > 1:
                        times[way].append((perf_counter() - began) / (2 if name == "message" else 1))
            seconds = {way: median(each) for way, each in times.items()}
            right = bool(vector[0] == (plain.size if name == "sum" else 1)) and bool(vector[0] == vector[-1])
            results.append({"what": name, "bytes": nbytes, "seconds": seconds, "right": right})
            if first:
                cells = [
                    f"{1e6 * seconds[way]:,.0f} µs, {nbytes / seconds[way] / 1e9:.2f} GB/s" if way in seconds else "–"
                    for way in ("staged", "direct")
                ]
                print(f"| {name}{'' if right else ', WRONG'} | {nbytes:,} | {' | '.join(cells)} |", flush=True)
                if options.json:
                    options.json.write_text(json.dumps(results, indent=1) + "\n")
    plain.leave()
    raise SystemExit(0 if all(each["right"] for each in results) else 1)


if __name__ == "__main__":
    main()
