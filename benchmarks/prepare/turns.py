"""One import with --jobs 1 and --jobs 2, in turns: used by the benchmarks beside this file.

What two cores give is measured too: two imports with --jobs 1 at once, which share nothing but the machine.
"""

import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from launch import wait_for

DEADLINE = 3600  # seconds for an import


def compare(words: list[str], out: Path, turns: int) -> float:
    """Print each turn and the medians; the median seconds with two processes.

    `words`: the command `prepare ...` that makes the folder `out`. A turn is the whole command, its start included.
    """
    seconds: list[tuple[float, float, float]] = []
    for _ in range(turns):
        one, two, pair = (
            _taken(words, [out], 1),
            _taken(words, [out], 2),
            _taken(words, [out, out.with_name("other")], 1),
        )
        seconds.append((one, two, pair))
        print(f"one process {one:.1f} s, two {two:.1f} s ({one / two:.2f} x)", end="; ")
        print(f"two commands at once {pair:.1f} s ({2 * one / pair:.2f} x)", flush=True)
    one, two, pair = (statistics.median(column) for column in zip(*seconds, strict=True))
    print(f"medians: {one:.1f} s, {two:.1f} s, {pair:.1f} s; ratio of the turns", end=" ")
    print(f"{statistics.median(one / two for one, two, _ in seconds):.2f}", end=", of two commands ")
    print(f"{statistics.median(2 * one / pair for one, _, pair in seconds):.2f}")
    return two


def _taken(words: list[str], outs: list[Path], jobs: int) -> float:
    """Seconds until all of these folders are made, at once."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "mpitrain", "prepare", *words, "--jobs", str(jobs)]
    started = [subprocess.Popen([*command, str(out)], stdout=subprocess.DEVNULL) for out in outs]
    wait_for(" ".join(command[2:]), started, DEADLINE)
    taken = time.perf_counter() - began
    for out in outs:
        shutil.rmtree(out)
    return taken
