"""Every sample of an epoch is trained exactly once, whatever checkpoints, signals and resumes come between."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MPIRUN = Path(sys.executable).with_name("mpirun")

#: One MPI program that stops and resumes trainings: a launch for each would take minutes. Rank 0 holds up a periodic
#: checkpoint, before it asks for pieces or when it has them all, while the signals arrive and are answered. Ranks note
#: which samples they load. In every checkpoint, what was handed out is either trained on or to be handed out again.
PROGRAM = """
import json, os, signal, sys, threading, time
from collections import Counter
from pathlib import Path
import h5py
from mpitrain import checkpoint
from mpitrain.training.gradients import Learner
from mpitrain.monitoring.monitor import MasterMonitor
from mpitrain.mpi import Transport, abort_on_exception
from mpitrain.api.options import TrainOptions
from mpitrain.api.train import train_on
from mpitrain.checkpoint.writer import Saver
from mpitrain.signals import STOPPED, Stop

def train(options):
    stop = Stop()
    stop.install()
    return train_on(Transport(deadline=120), options, stop)

abort_on_exception()
SAMPLES, cases, last = 1438, json.loads(Path("cases.json").read_text()), sys.argv[1] == "last"
transport = Transport(deadline=120)
load, save, begin, gate = Learner.load, MasterMonitor.checkpoint, Saver.begin, {}

def loaded(self, work):
    notes.write(f"{work.epoch} {work.start} {work.count}\\n")
    return load(self, work)

def hold(moment):
    if moment in gate:
        gate.pop(moment).touch()
        time.sleep(0.5)

def saving(self, piece, **more):
    if self.saver() is not None:
        hold("before")
    save(self, piece, **more)

def beginning(self, samples, nbytes):
    hold("within")
    begin(self, samples, nbytes)

def tell(when, over):
    while not when.exists() and not over.is_set():
        time.sleep(0.005)
    if not over.is_set():
        os.kill(os.getpid(), signal.SIGTERM)

def positions(rows):
    return Counter(place for e, s, n in rows for place in range(e * SAMPLES + s, e * SAMPLES + s + n))

def stored(folder):
    with h5py.File(folder / "state.h5") as file:
        return json.loads(file.attrs["numbers"]), [tuple(map(int, row[:3])) for row in file["ranges"][:]]

def check(name, number):
    for folder in (Path(name) / "checkpoints").glob("[0-9]*"):
        numbers, ranges = stored(folder)
        left = positions(ranges)
        assert not left or (max(left.values()) == 1 and max(left) < numbers["position"]), (name, number, folder, ranges)
        assert numbers["trained"] + left.total() == numbers["position"], (name, number, folder, numbers, ranges)
    newest, torn = checkpoint.newest(Path(name) / "checkpoints")
    numbers, ranges = stored(newest)
    rows = [tuple(map(int, line.split())) for file in Path().glob(f"{name}.*.notes") for line in file.open()]
    known = positions(rows) + positions(ranges)
    wrong = [place for place in range(numbers["position"]) if known[place] != 1]
    assert not wrong and known.total() == numbers["position"], (name, number, len(wrong), wrong[:9], known.total())
    return numbers["position"] // SAMPLES + 1

Learner.load, MasterMonitor.checkpoint, Saver.begin = loaded, saving, beginning
for name, told, settings in cases:
    for number in range(1 if last else 2):
        resume, gone = Path(name) if last or number else None, threading.Event()
        settings = ["training.epochs=100000"] if number else settings
        with Path(f"{name}.{last}-{number}-{transport.rank}.notes").open("w") as notes:
            if last:
                more = int(transport.broadcast(str(check(name, "before")).encode(), "the epochs"))
                settings = [f"training.epochs={more}", "stages=[]"]
            elif transport.rank == 0:
                gate["within" if number else "before"] = Path(f"{name}-{number}.due")
            if transport.rank in told and not last:
                teller = threading.Thread(target=tell, args=(Path(f"{name}-{number}.due"), gone))
                teller.start()
            status = train(TrainOptions(overrides=tuple(settings), resume=resume, out=None if resume else Path(name)))
            gone.set()
        assert status == (0 if last else STOPPED), (name, number, status)
        transport.barrier("the end of a training")
        if transport.rank == 0:
            check(name, number)
            trained = json.loads((Path(name) / "summary.json").read_text())["samples"]
            assert not last or trained == more * SAMPLES, (name, trained, more)
            print(name, number, trained, flush=True)
        transport.barrier("the check")
"""

COMMON = (
    "training.epochs=100000",
    "training.minibatch=32",
    "run.evaluate_every=0",
    "run.checkpoint_samples=500",
    "run.progress=none",
)
CHUNKS = ("algorithm.sampling=chunked", "algorithm.chunk=50", "algorithm.loaders=3")
#: Name, the ranks that are told to stop, and the settings.
CASES = [
    ("asgd", [1], ("algorithm.name=asgd", "algorithm.minibatches=4", "algorithm.until_free=true")),
    ("mdownpour", [1, 2], ("algorithm.name=mdownpour",)),
    ("easgd", [1], ("algorithm.name=easgd", "algorithm.tau=9")),
    ("easgd-all", [0, 1, 2], ("algorithm.name=easgd", "algorithm.tau=9", "run.exchange=messages")),
    ("easgd-in-turn", [2], ("algorithm.name=eamsgd", "algorithm.tau=9", "algorithm.order=round-robin")),
    ("mvadownpour-chunks", [1], ("algorithm.name=mvadownpour", "algorithm.tau=2", *CHUNKS)),
    ("easgd-chunks", [1], ("algorithm.name=easgd", "algorithm.tau=9", *CHUNKS)),
    ("easgd-chunks-in-turn", [2], ("algorithm.name=eamsgd", "algorithm.order=round-robin", *CHUNKS)),
    ("downpour", [1, 2], ("algorithm.name=downpour", "algorithm.tau=9")),
    ("admm", [1], ("algorithm.name=admm", "algorithm.tau=9")),
    ("easgd-sync", [1], ("algorithm.name=easgd-sync",)),
    ("block-momentum", [1], ("algorithm.name=block-momentum",)),
    ("allreduce", [2], ("algorithm.name=allreduce",)),
    ("hybrid", [1], ("algorithm.name=hybrid",)),
    ("sparse-delta", [1], ("algorithm.name=sparse-delta",)),
    ("msgd", [2], ("algorithm.name=msgd",)),
    ("joining", [1], ("algorithm.name=easgd", "algorithm.tau=9", "stages=[{at=0, workers=1}, {at=0.35, workers=2}]")),
]


def run(folder: Path, ranks: int, *words: str) -> str:
    """What the program says on so many ranks; it must end well."""
    words_of = [(name, told, [*COMMON, *settings]) for name, told, settings in CASES]
    (folder / "cases.json").write_text(json.dumps(words_of))
    (folder / "stop.py").write_text(PROGRAM)
    command = [str(MPIRUN), "-n", str(ranks), sys.executable, "stop.py", *words]
    pipe, environment = subprocess.PIPE, {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=400)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"a training did not end:\n{process.communicate()}")
    assert process.returncode == 0, out + err
    return out


def test_signals_that_meet_a_checkpoint_cost_no_sample(tmp_path: Path) -> None:
    """Each training is told to stop as a periodic checkpoint begins, resumes, is told to stop while one is made, and
    resumes on fewer ranks to the end of an epoch."""
    if not MPIRUN.exists():
        pytest.skip("this environment has no mpirun of its own")
    assert len(run(tmp_path, 3, "stop").splitlines()) == 2 * len(CASES)
    assert len(run(tmp_path, 2, "last").splitlines()) == len(CASES)


def test_an_epoch_keeps_its_order(simulated: Callable[..., Any], tmp_path: Path) -> None:
    """A resume within it names the key that would give the samples another one; between two epochs it may have it."""
    keys = ("algorithm.name=easgd", "algorithm.sampling=chunked", "algorithm.tau=2")
    words = [word for key in keys for word in ("--set", key)]
    assert simulated(2, *words, "--set", "training.epochs=0.4", "--out", "run").status == 0
    for key, change in (
        ("training.seed", "training.seed=2"),
        ("algorithm.loaders, algorithm.chunk", "algorithm.loaders=3"),
        ("algorithm.sampling", "algorithm.name=allreduce"),
    ):
        ended = simulated(2, "--resume", "run", "--set", "training.epochs=1", "--set", change)
        told = f"mpitrain: {key}: samples cannot get another order within an epoch, and the newest checkpoint is in one"
        assert ended.status == 2 and ended.err == f"{told} (0.40)\n"
    drawn = ("--set", "training.seed=2", "--set", "algorithm.sampling=independent")  # of which an epoch has no order
    for more in (("--set", "training.epochs=1"), ("--set", "training.epochs=2", *drawn)):
        assert simulated(2, "--resume", "run", *more).status == 0
    simulated(2, *words, "--set", "training.epochs=1", "--out", "whole")
    assert simulated(2, "--resume", "whole", "--set", "training.epochs=2", "--set", "training.seed=2").status == 0
    assert json.loads((tmp_path / "whole" / "summary.json").read_text())["samples"] == 2 * 1438
