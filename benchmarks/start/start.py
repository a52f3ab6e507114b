"""What the start of ranks takes: from the command to the first update of one rank, and many ranks of one node.

    python benchmarks/start/start.py [RANKS [REPEATS]]

The first start, which compiles loops and bytecode, is not counted. Each line is of one training of the embedded digits.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MPIRUN = Path(sys.executable).with_name("mpirun")
PROGRAM = [sys.executable, "-m", "mpitrain"]
#: As `mpitrain`, but the process ends with the first update, and tells the modules that were loaded.
FIRST = """
import os, sys
from mpitrain.__main__ import main
from mpitrain.device import cpu

def fast(self, rule, plain=cpu.Cpu.fast):
    found = plain(self, rule)
    def first(*vectors, **numbers):
        found(*vectors, **numbers)
        packages = {name.partition(".")[0] for name in sys.modules}
        print(len(sys.modules), "modules", *sorted(packages & {"h5py", "numba", "rich"}), flush=True)
        os._exit(0)
    return first

cpu.Cpu.fast = fast
main(sys.argv[1:])
"""


def timed(command: list[str], folder: str) -> tuple[float, float, str]:
    """Seconds that a command takes, seconds of processors, and its last line."""
    shutil.rmtree(folder, ignore_errors=True)
    began, before = time.monotonic(), os.times()
    ended = subprocess.run([*command, "--out", folder], capture_output=True, text=True, timeout=600)
    seconds, after = time.monotonic() - began, os.times()
    if ended.returncode:
        sys.exit(f"{' '.join(command)}: {ended.returncode}\n{ended.stderr}")
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return seconds, spent, ended.stdout.strip().splitlines()[-1]


def main(ranks: int = 64, repeats: int = 5) -> None:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as top:
        folder, one = f"{top}/run", [sys.executable, "-c", FIRST, "--set", "algorithm.name=sgd"]
        many = [str(MPIRUN), "-n", str(ranks), *PROGRAM, "--set", "training.epochs=2"]
        timed(one, folder)
        for _ in range(repeats):
            seconds, spent, loaded = timed(one, folder)
            print(f"1 rank to the first update: {seconds:.2f} s, {spent:.2f} s of processors; {loaded}", flush=True)
        for _ in range(max(repeats // 2, 1)):
            seconds, spent, _ = timed(many, folder)
            training = json.loads(Path(folder, "summary.json").read_text())["seconds"]
            words = f"{seconds:.1f} s, {spent:.0f} s of processors, {training:.1f} s of it training"
            print(f"{ranks} ranks, two epochs: {words}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
