"""A slow start: a rank that loads its program, compiles or prepares is alive, and the others go on waiting for it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEADLINE = 3.0  # seconds; enough for whatever else a busy machine does

#: The program on a processor that is slow where one rank at a time is at work, and keeps Python's lock as Python does.
PROGRAM = f"""
import os, sys, time
from mpitrain.start import rank_of
rank = rank_of(os.environ, -1)

def work(where):
    end = time.monotonic() + {1.3 * DEADLINE}
    while time.monotonic() < end:
        pass
    print("worked:", where, flush=True)

def slow(owner, name):
    plain = getattr(owner, name)
    def slowly(*arguments, **more):
        work(name)
        return plain(*arguments, **more)
    setattr(owner, name, slowly)

class Loading:
    def find_spec(self, name, path=None, target=None):
        if name == "mpitrain.api.train" and rank == 1:
            work(name)
        if name == "mpitrain.api.going_on":  # imported by that one before the two modules that are slowed
            import mpitrain.api.opening, mpitrain.api.setup, mpitrain.models.network
            if rank == 0:
                slow(mpitrain.models.network, "warm")
                slow(mpitrain.api.opening, "open_run_folder")
            else:
                slow(mpitrain.api.setup, "_built")

sys.meta_path.insert(0, Loading())
from mpitrain.__main__ import main
sys.exit(main())
"""


def test_work_that_takes_longer_than_the_deadline_ends_no_job(launch: Callable[..., Any], tmp_path: Path) -> None:
    """One rank is at work, the other waits for it."""
    (tmp_path / "slow.py").write_text(PROGRAM)
    settings = ("algorithm.name=allreduce", f"run.deadline={DEADLINE}", "training.epochs=1")
    words = [word for each in settings for word in ("--set", each)]
    ended = launch(2, *words, "--out", "run", program=("slow.py",))
    assert ended.status == 0, ended.err
    worked = [line for line in ended.out.splitlines() if line.startswith("worked: ")]
    assert sorted(worked) == [f"worked: {what}" for what in ("_built", "mpitrain.api.train", "open_run_folder", "warm")]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["exit_reason"] == "finished"
