"""`allreduce`, `sparse-delta` and PyTorch's DistributedDataParallel side by side between two emulated hosts.

python benchmarks/sparse/hosts.py [--torch PYTHON] [--rounds 3] [--rates none 1gbit 100mbit] [--minibatches 20 100 20]

As root, in an environment with MPICH (see benchmarks/twohosts). `none` is the same two hosts without a limit; the rates
alternate within a round. PYTHON is the interpreter of an environment with torch; without it that row is left out.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "twohosts"))
from launch import table, wait_for
from twohosts import AGENT, DEVICE, Link, missing

FOLDER = Path(__file__).resolve().parent
DEADLINE = 900  # seconds for the trainings of a program at one rate


def ours(link: Link, counts: list[int]) -> str:
    """What rates.py prints between the hosts."""
    return said("rates.py", [link.launch([sys.executable, str(FOLDER / "rates.py"), *map(str, counts)])], [{}])


def torchs(link: Link, python: str, minibatches: int) -> str:
    """What ddp_rank.py prints, one process on each host."""
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29533", "GLOO_SOCKET_IFNAME": DEVICE}
    command = [python, str(FOLDER / "ddp_rank.py"), str(minibatches)]
    commands = [[str(AGENT), host, *command] for host in link.hosts]
    return said("ddp_rank.py", commands, [world | {"RANK": str(rank)} for rank in range(len(commands))])


def said(what: str, commands: list[list[str]], variables: list[dict[str, str]]) -> str:
    """What the commands print, which run at once; ends the program when one fails.

    They write to a file: whoever is left of a job that failed would keep a pipe open.
    """
    with tempfile.TemporaryFile("w+") as file:
        processes = [
            subprocess.Popen(command, env={**os.environ, **own}, stdout=file)
            for command, own in zip(commands, variables, strict=True)
        ]
        wait_for(what, processes, DEADLINE)
        file.seek(0)
        return file.read()


def measure(rate: str, python: str | None, counts: list[int]) -> dict[str, float]:
    """Samples per second by name at one rate."""
    with Link(rate) as link:
        text = ours(link, counts[:2]) + (torchs(link, python, counts[2]) if python else "")
    return {name: float(number) for name, number in re.findall(r"^(\S+) (\d+) samples/s", text, re.MULTILINE)}


def main() -> int:
    """Print a table of medians, and of each to the same without a limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rates", nargs="+", default=["none", "1gbit", "100mbit"])
    parser.add_argument("--minibatches", nargs=3, type=int, default=[20, 100, 20])
    words = parser.parse_args()
    if why := missing():
        print(why, file=sys.stderr)
        return 2
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(words.rounds):
        for rate in words.rates:
            for name, number in measure(rate, words.torch, words.minibatches).items():
                found.setdefault((name, rate), []).append(number)
                print(f"{rate}: {name} {number:.0f} samples/s", flush=True)
    medians = {key: statistics.median(numbers) for key, numbers in found.items()}
    rows = []
    for name in dict.fromkeys(name for name, _ in medians):
        base = medians[name, words.rates[0]]
        rows.append([name, *(f"{medians[name, rate]:.0f} ({medians[name, rate] / base:.2f})" for rate in words.rates)])
    print(table(["samples/s (share)", *words.rates], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
