"""Signals: the first asks for the end, the second ends at once."""

import subprocess
import sys

PROGRAM = """
import os, signal
from mpitrain.session import Stop
stop = Stop()
stop.install()
stop.flag = {before}
for number in range({signals}):
    os.kill(os.getpid(), signal.SIGTERM)
print(stop.flag, stop.signal)
"""


def ended(signals: int, before: bool = False) -> tuple[int, str]:
    """Exit status and output of a process that sends itself signals."""
    program = PROGRAM.format(signals=signals, before=before)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout.strip()


def test_the_first_signal_only_sets_the_flag() -> None:
    """Also where another rank's wish to stop has set it before."""
    assert ended(1) == (0, "True 15")
    assert ended(1, before=True) == (0, "True 15")


def test_the_second_ends_at_once() -> None:
    """By the signal itself."""
    assert ended(2) == (-15, "")
