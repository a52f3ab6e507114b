"""The processes of an import do not outlive the one that started them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = """
import os, time
from mpitrain.data.importers.processes import processes

def begin(number):
    time.sleep(0.2)
    return os.getpid()

if __name__ == "__main__":
    executor = processes(2, "math")
    print(*{future.result() for future in [executor.submit(begin, number) for number in range(8)]}, flush=True)
    time.sleep(100)
"""


def test_processes_end_when_theirs_is_killed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with subprocess.Popen([sys.executable, str(tmp_path / "program.py")], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        children = [int(word) for word in process.stdout.readline().split()]
        assert children
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while any(_runs(child) for child in children):
        assert time.monotonic() < deadline, children
        time.sleep(0.05)


def _runs(process: int) -> bool:
    """Whether it is there and no zombie, which it stays where nobody collects orphans."""
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
