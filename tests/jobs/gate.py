"""Runs that wait for a signal, so that what happens before they have finished does not depend on how fast they are."""

import os
from pathlib import Path

#: Read by every Python that starts with the folder in its path; the program's ranks alone go on.
GATE = """
import os, signal, sys, time
from pathlib import Path

def close():
    from mpitrain.training.gradients import Learner
    from mpitrain.signals import Stop
    load, handle, count, heard = Learner.load, Stop._handle, 0, False
    def handled(self, number, frame):
        nonlocal heard
        heard = True
        handle(self, number, frame)
    def loaded(self, work):
        nonlocal count
        count += 1
        if count == 20:
            from mpitrain.mpi import MPI
            rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
            waited = len(list(folder.glob(f"waits-{{rank}}-*")))
            if size == 2 and waited < {times}:
                (folder / f"waits-{{rank}}-{{waited + 1}}").touch()
                if {stand_still}:
                    os.kill(os.getpid(), signal.SIGSTOP)
                while not heard:
                    time.sleep(0.05)
        return load(self, work)
    Learner.load, Stop._handle = loaded, handled

folder = Path(__file__).parent
if "mpitrain" in sys.orig_argv and "--continue" in sys.orig_argv:
    close()
"""


class Gate:
    """Holds up both ranks of runs of two at their 20th minibatch until a signal comes, in so many of their starts.

    Ranks that `stand_still` are stopped, as by SIGSTOP: they hear a signal only when they are continued.
    """

    def __init__(self, folder: Path, times: int = 1, stand_still: bool = False) -> None:
        self._folder = folder / "gate"
        self._folder.mkdir()
        (self._folder / "sitecustomize.py").write_text(GATE.format(times=times, stand_still=stand_still))

    @property
    def variables(self) -> dict[str, str]:
        """What the environment of the runs must hold."""
        path = os.environ.get("PYTHONPATH")
        return {"PYTHONPATH": f"{self._folder}{os.pathsep + path if path else ''}"}

    def reached(self, time: int = 1) -> bool:
        """Whether both ranks wait, in their `time`-th start."""
        return all((self._folder / f"waits-{rank}-{time}").exists() for rank in (0, 1))
