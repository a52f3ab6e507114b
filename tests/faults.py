"""The program with faults: at a point, on a rank, something happens.

    python tests/faults.py FAULTS ARGUMENTS...      FAULTS: a JSON list of `Fault`, from `program`

A point is a function of the package ("mpitrain.training.gradients.Learner.load"); "" is the start of the process,
"import MODULE" the first import of a module, "exit" the end of the interpreter, "thread" a thread that begins with the
program.
"""

import atexit
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple


class Fault(NamedTuple):
    """What happens before a point is run: actions, one after another, in the folder that the program was started in.

    "sleep S [S]": so many seconds, or a random number between two. "touch FILE". "await FILE [S]": until it exists, or
    for so long. "exit STATUS": the process, at once. "lose SIGNAL": this process sends itself a signal, after it has
    written the time to the file `lost`. "pid FILE": writes the process's number. "stop": a stop request. "call METHOD":
    of the function's first argument. "return VALUE": instead of what the function returns. "note FILE": appends the
    time and the samples of its second argument. "from SAMPLE": nothing more unless these begin there or later, counted
    over all epochs. "{rank}" is this rank.
    """

    point: str
    actions: list[str]
    rank: int | None = None  # None: all
    call: int | None = None  # which call of the point, counted from 0; None: every one
    thread: str = ""  # only in the thread of this name
    after: bool = False  # not before the point, but after it


def program(*faults: Fault) -> tuple[str, ...]:
    """The words that start the program with these faults, in place of `-m mpitrain`."""
    return (__file__, json.dumps(faults))


def act(actions: list[str], first: Any = None, second: Any = None) -> list[Any]:
    """Carry out the actions at a function with these first arguments; the value to return, if there is one."""
    for action in actions:
        what, *words = action.split()
        if what == "sleep":
            time.sleep(random.uniform(float(words[0]), float(words[-1])))
        elif what == "touch":
            Path(words[0]).touch()
        elif what == "await":
            end = time.monotonic() + float(words[1] if len(words) > 1 else "inf")
            while not Path(words[0]).exists() and time.monotonic() < end:
                time.sleep(0.01)
        elif what == "exit":
            os._exit(int(words[0]))
        elif what == "lose":
            lose(int(words[0]))
        elif what == "pid":
            Path(words[0]).write_text(str(os.getpid()))
        elif what == "stop":
            first.stop.flag = True
        elif what == "call":
            getattr(first, words[0])()
        elif what == "note":
            with Path(words[0]).open("a") as file:
                file.write(f"{time.time()} {second.epoch} {second.start} {second.count}\n")
        elif what == "from":
            if second.epoch * 1438 + second.start < int(words[0]):  # the embedded digits
                return []
        elif what == "return":
            return [json.loads(words[0])]
        else:
            raise ValueError(action)
    return []


_losing = threading.Lock()  # two threads may come to it at once


def lose(number: int) -> None:
    """Send this process a signal, once."""
    if _losing.acquire(blocking=False):
        new = Path(f"lost.{os.getpid()}")  # another rank may lose itself at the same moment
        new.write_text(repr(time.time()))
        new.rename("lost")
        os.kill(os.getpid(), number)


class Importing:
    """Does something before a module is imported."""

    def __init__(self, module: str, what: Callable[[], object]) -> None:
        self.module, self.what = module, what

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == self.module:
            self.module = ""
            self.what()


def owner_of(point: str) -> tuple[Any, str]:
    """The module or class that a function belongs to, and the function's name."""
    owner, name = point.rsplit(".", 1)
    try:
        return import_module(owner), name
    except ModuleNotFoundError:
        module, kind = owner.rsplit(".", 1)
        return getattr(import_module(module), kind), name


def install(fault: Fault) -> None:
    """Put a fault in its place."""
    owner, name = owner_of(fault.point)
    plain, calls = getattr(owner, name), [0]

    def instead(*arguments: Any, **names: Any) -> Any:
        due = fault.call in (None, calls[0]) and fault.thread in ("", threading.current_thread().name)
        calls[0] += 1
        if fault.after:
            value = plain(*arguments, **names)
        given = act(fault.actions, *arguments[:2]) if due else []
        return given[0] if given else value if fault.after else plain(*arguments, **names)

    setattr(owner, name, instead)


def main() -> int:
    from mpitrain.start import rank_of

    rank = rank_of(os.environ, 0)
    faults = [Fault(*each) for each in json.loads(sys.argv.pop(1).replace("{rank}", str(rank)))]
    here = [fault for fault in faults if fault.rank in (None, rank)]
    for fault in (fault for fault in here if not fault.point):
        act(fault.actions)
    early = [fault for fault in here if fault.point.startswith("import ")]
    for fault in early:
        sys.meta_path.insert(0, Importing(fault.point.split()[1], lambda actions=fault.actions: act(actions)))
    for fault in (fault for fault in here if fault.point == "thread"):
        threading.Thread(target=act, args=(fault.actions,), daemon=True).start()
    for fault in (fault for fault in here if "." in fault.point and fault not in early):
        install(fault)
    if leaving := [fault for fault in here if fault.point == "exit"]:
        import_module("mpitrain.mpi")  # whose own end is to come after this one
        atexit.register(act, leaving[0].actions)
    from mpitrain.__main__ import main as run

    return int(run())


if __name__ == "__main__":
    sys.exit(main())
