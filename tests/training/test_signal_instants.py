"""Whole trainings, each ended by a signal at a random instant of its life, leave valid checkpoints.

`--instants N`: how many.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

MPIRUN = Path(sys.executable).with_name("mpirun")

#: One MPI program that trains again and again, in a folder of its own each: a launch for each would take minutes.
PROGRAM = """
import json, os, random, signal, sys, threading
from pathlib import Path
import h5py
from mpitrain import checkpoint
from mpitrain.mpi import Transport, abort_on_exception
from mpitrain.api.options import TrainOptions
from mpitrain.api.train import train_on
from mpitrain.signals import STOPPED, Stop

def train(options):
    stop = Stop()
    stop.install()
    return train_on(Transport(deadline=120), options, stop)

abort_on_exception()
instants, seed = int(sys.argv[1]), int(sys.argv[2])
transport, same = Transport(deadline=120), random.Random(seed)
algorithms = ("asgd", "easgd", "eamsgd-sync", "hybrid", "sparse-delta", "allreduce", "msgd")
plain, plan, timers = Stop.install, [], []

def install(self):
    plain(self)
    if plan and plan[0] in (-1, transport.rank):  # to all, as launchers do, or to one alone
        timers.append(threading.Timer(plan[1], os.kill, (os.getpid(), signal.SIGTERM)))
        timers[-1].start()

Stop.install = install
for number in range(instants):
    plan[:] = same.choice([-1, *range(transport.size)]), 2 * same.random() ** 2
    name, out = algorithms[number % len(algorithms)], Path(f"{number:03d}")
    settings = (f"algorithm.name={name}", "training.epochs=100000", "run.checkpoint_samples=3000",
                "run.progress=none", "run.evaluate_every=5", "run.deadline=120")
    status = train(TrainOptions(overrides=settings, out=out))
    assert status == STOPPED, (number, name, plan, status)
    while timers:  # where another rank's signal ended this training, this rank's is not for the next one
        timers[-1].cancel()
        timers.pop().join()
    transport.barrier("the end of a training")
    told = json.loads((out / "summary.json").read_text())
    if transport.rank == 0:
        found, torn = checkpoint.newest(out / "checkpoints")
        assert found is not None and not torn and found.name == f"{told['samples']:012d}", (number, name, found, torn)
        left = [path.name for path in (out / "checkpoints").glob(".*")]
        assert not left, (number, name, left)
        print(number, name, *plan, told["samples"], flush=True)
    if number % 8 == 0:
        plan.clear()
        with h5py.File(checkpoint.newest(out / "checkpoints")[0] / "state.h5") as file:
            more = json.loads(file.attrs["numbers"])["position"] // 1438 + 1
        status = train(TrainOptions(overrides=(f"training.epochs={more}",), resume=out))
        assert status == 0 and json.loads((out / "summary.json").read_text())["samples"] == 1438 * more, (number, name)
"""


def test_every_instant_leaves_a_whole_checkpoint(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Status 75; of the very samples that the summary tells; every eighth is resumed to its end, no sample lost."""
    if not MPIRUN.exists():
        pytest.skip("this environment has no mpirun of its own")
    instants = request.config.getoption("--instants")
    (tmp_path / "again.py").write_text(PROGRAM)
    command = [str(MPIRUN), "-n", "3", sys.executable, "again.py", str(instants), "7"]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=60 + 30 * instants)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"a training did not end:\n{process.communicate()}")
    assert process.returncode == 0, out + err
    assert len(out.splitlines()) == instants
