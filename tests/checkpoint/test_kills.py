"""SIGKILL at random instants while checkpoints are written: what was committed last, or something newer, comes back.

One process imports everything and forks the ones that are killed, so that a kill takes milliseconds. `--kills N`.
"""

import subprocess
import sys
from pathlib import Path

import pytest

#: A forked child goes on from the newest checkpoint, writes one after another as a training does, and notes in a pipe
#: what is committed; it is killed at a random instant. Vectors tell which checkpoint they belong to.
PROGRAM = """
import os, random, select, signal, sys, time
from pathlib import Path
import numpy as np
from mpitrain import checkpoint
from mpitrain.sampling.queue import Queue, Work
from mpitrain.flat import Layout, Parameter
from mpitrain.checkpoint.writer import Saver
from mpitrain.checkpoint.state import State
from concurrent.futures import wait

class Alone:
    "A transport that waits for this rank's own threads alone, without MPI, which killed children would leave behind."
    at_work = staticmethod(lambda jobs, awaited: wait(jobs))
    alive_while = staticmethod(lambda action: action())
    join = staticmethod(lambda jobs, seconds, alone: not wait(jobs, seconds).not_done)

Alone.runtime = Alone
SIZE = 30_000
LAYOUT = Layout([Parameter("w", (SIZE,), ("constant", 0.0))])
folder, kills, same = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))

def empty():
    state = State(np.zeros(SIZE, np.float32), Queue(100, 10**9), beside={"velocity": np.zeros(SIZE, np.float32)})
    state.local = {"x": np.zeros(SIZE, np.float32)}
    return state

def resumed():
    found, torn = checkpoint.newest(folder)
    assert not torn, torn
    state = empty()
    if found is not None:
        checkpoint.load_state(found, state, LAYOUT)
        checkpoint.load_local(found, 0, state, LAYOUT)
        number = int(found.name.rstrip("~"))
        for vector in (state.theta, state.beside["velocity"], state.local["x"]):
            assert (vector == number).all(), (found, vector[0])
        assert (state.trained, state.local_numbers["t"]) == (number, number)
        assert state.queue.returned == [Work(0, 3, number % 50 + 1, 4)]
        state.queue.returned.clear()
    best = folder / "best", folder / "best~"
    if any(path.exists() for path in best):
        path, _ = checkpoint.find(folder, "best")
    return state

def write(pipe, seed):
    random.seed(seed)
    state, saver = resumed(), Saver(folder, LAYOUT, 2, 60.0, Alone)
    while True:
        state.trained += random.choice((0, 1, 1, 7))  # 0: a checkpoint in the place of another
        for vector in (state.theta, state.beside["velocity"], state.local["x"]):
            vector[:] = state.trained
        state.local_numbers["t"] = state.trained
        own, whole = saver.copy_own(state), saver.copy_state(state, [Work(0, 3, state.trained % 50 + 1, 4)])
        saver.offer_best(1 / (1 + state.trained), state.theta, state.trained)
        saver.begin(state.trained, own.nbytes + whole.nbytes)
        saver.write_own(state.trained, 0, own)
        saver.commit(state.trained, whole, [0])
        saver.settle()
        os.write(pipe, b"%12d" % state.trained)

committed = 0
for kill in range(kills):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            write(writer, kill)
        finally:
            os._exit(1)
    os.close(writer)
    assert select.select([reader], [], [], 60)[0], "no checkpoint within 60 s"
    time.sleep(same.random() * float(sys.argv[4]))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), status
    with os.fdopen(reader, "rb") as pipe:
        committed = max(committed, int(pipe.read()[-12:]))
    left = sorted(path.name for path in folder.iterdir())
    found = resumed().trained
    assert found >= committed, (kill, found, committed, left)
    print(kill, committed, found, *left, flush=True)
"""


def test_a_kill_never_costs_a_committed_checkpoint(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Nothing older than the last committed one is taken up, nothing torn stands under a checkpoint's name."""
    kills = request.config.getoption("--kills")
    (tmp_path / "kill.py").write_text(PROGRAM)
    command = [sys.executable, "kill.py", "checkpoints", str(kills), "3", "0.05"]
    (tmp_path / "checkpoints").mkdir()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60 + 5 * kills, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == kills
    assert sum(".writing-" in line for line in lines) >= kills // 10  # the kills did come while one was written
