"""Is this version slower than another one? Both take turns at every single step, so that what else runs hits both.

    python benchmarks/versions/lockstep.py OLD NEW [--what NAME ...] [--turns N]

OLD and NEW are checkouts, each with a virtual environment in `.venv` into which it is installed (with torch for the
steps). Prints the median of the turns' ratios new ÷ old of seconds, and the ratio of the fastest turns.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from launch import end

DEADLINE, GRACE = 600.0, 60.0  # seconds of a turn, its imports included, and in which a program may end
#: By name: ranks, and a program that defines `turn`, which returns seconds.
PROGRAMS = {
    "step-sigmoid": (1, "compute", "import step; run = step.sigmoid_steps(True)['mpitrain']\nturn = clocked(run)"),
    "step-cifar": (1, "compute", "import step; run = step.cifar_steps(True)['mpitrain']\nturn = clocked(run)"),
    **{
        f"accumulate-{density:g}": (
            *(1, "codec"),
            f"""
import exchange as e, numpy as np
start, gradient = e.steady_state({density}, np.random.default_rng(0))
residual, words = start.copy(), np.zeros(e.SIZE, np.uint32)
run = clocked(lambda: e.accumulate(residual, gradient, words, scale=e.SCALE, threshold=e.THRESHOLD))
def turn():
    residual[:] = start
    return run()
""",
        )
        for density in (0.001, 0.01, 0.1)
    },
    **{
        f"train-{name}": (
            *(3, "scaling"),
            f"""
import scaling
from functools import partial
from mpi4py import MPI
from mpitrain.mpi import Transport
transport = Transport(); rank = transport.rank
pair = Transport(transport.comm.Split(int(rank == 0)))
transports = [pair, transport]
made = partial(scaling.distributed, transport, pair, 60, scaling.DISTRIBUTED["{name}"])
turn = lambda: 1 / scaling.timed(transport, made, 60)
""",
        )
        for name in ("asgd", "easgd", "sparse-delta")
    },
}
#: A turn begins when a file appears. Ranks sleep meanwhile, so that they take no time from the other version.
COMMON = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
rank, transports = 0, []
def clocked(run):
    def timed():
        began = time.perf_counter(); run(); return time.perf_counter() - began
    return timed
{program}
folder, number = sys.argv[2], 0
while not os.path.exists(f"{{folder}}/end"):
    if not os.path.exists(f"{{folder}}/go{{number}}"):
        time.sleep(0.005)
        continue
    seconds = turn()
    if rank == 0:
        open(f"{{folder}}/part", "w").write(repr(seconds)); os.rename(f"{{folder}}/part", f"{{folder}}/done{{number}}")
    number += 1
for each in transports:
    each.leave()
"""


class Version:
    """One checkout's program, which waits for its turns."""

    def __init__(self, checkout: Path, ranks: int, where: str, program: str, folder: Path) -> None:
        folder.mkdir()
        (folder / "program.py").write_text(COMMON.format(program=program))
        binaries = checkout / ".venv" / "bin"
        launch = [str(binaries / "mpirun"), "-n", str(ranks)] if ranks > 1 else []
        one_thread = ["env", "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1"]
        command = [str(binaries / "python"), str(folder / "program.py"), f"{checkout}/benchmarks/{where}", str(folder)]
        self._process = subprocess.Popen([*one_thread, *launch, *command], cwd=checkout)
        self._folder, self._number = folder, 0

    def turn(self) -> float:
        """Seconds of one turn."""
        (self._folder / f"go{self._number}").touch()
        done, until = self._folder / f"done{self._number}", time.monotonic() + DEADLINE
        while not done.exists():
            if time.monotonic() > until:
                sys.exit(f"a turn of a program has not ended within {DEADLINE:g} s")
            try:
                sys.exit(f"a program ended with status {self._process.wait(timeout=0.005)}")
            except subprocess.TimeoutExpired:
                continue
        self._number += 1
        return float(done.read_text())

    def end(self) -> None:
        """Stop the program."""
        (self._folder / "end").touch()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        end([self._process])


def main() -> None:
    """Print a line per program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--what", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--turns", type=int, default=21)
    options = parser.parse_args()
    for name in options.what:
        with tempfile.TemporaryDirectory() as made:
            each = (("old", options.old.absolute()), ("new", options.new.absolute()))
            seconds: list[tuple[float, float]] = []
            with ExitStack() as stack:
                versions = [Version(checkout, *PROGRAMS[name], Path(made) / side) for side, checkout in each]
                for version in versions:
                    stack.callback(version.end)
                for number in range(options.turns + 2):
                    order = (0, 1) if number % 2 else (1, 0)
                    took = {k: versions[k].turn() for k in order}
                    seconds.append((took[0], took[1]))
        old, new = zip(*seconds[2:], strict=True)  # two turns warm up
        ratio = statistics.median(b / a for a, b in seconds[2:])
        print(f"{name:20s} new / old {ratio:.3f} (fastest turns {min(new) / min(old):.3f})", flush=True)


if __name__ == "__main__":
    main()
