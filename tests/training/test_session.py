"""Signals: the first asks for the end, the second ends at once."""

import signal
import subprocess
import sys
from typing import Any

import pytest

from mpitrain.signals import NUMBERS, Stop

PROGRAM = """
import os, signal
from mpitrain.signals import Stop
now = 0.0
stop = Stop(clock=lambda: now)
stop.install()
stop.flag = {before}
for now in {times}:
    os.kill(os.getpid(), signal.{name})
print(stop.flag, stop.signal)
"""


def ended(*times: float, before: bool = False, name: str = "SIGTERM") -> tuple[int, str]:
    """Exit status and output of a process that sends itself signals at these seconds."""
    program = PROGRAM.format(times=times, before=before, name=name)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout.strip()


def test_the_first_signal_only_sets_the_flag() -> None:
    """Also where another rank's wish to stop has set it before."""
    assert ended(0.0) == (0, "True 15")
    assert ended(0.0, before=True) == (0, "True 15")


def test_echoes_of_the_first_are_no_second_one() -> None:
    """Slurm signals the ranks and srun, and srun signals the ranks; a busy node passes signals on late."""
    assert ended(5.0, 5.0, 14.9) == (0, "True 15")
    assert ended(5.0, 5.0, 6.9, name="SIGINT") == (0, "True 2")


@pytest.mark.parametrize(("name", "later"), [("SIGINT", 2.1), ("SIGTERM", 10.1), ("SIGUSR1", 10.1), ("SIGUSR2", 10.1)])
def test_the_second_ends_at_once(name: str, later: float) -> None:
    """By the signal itself."""
    assert ended(5.0, 5.0 + later, name=name) == (-signal.Signals[name], "")


def test_a_library_s_handler_does_not_end_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a profiler that is preloaded has one: Python names it None, and cannot put it back."""
    plain = {number: signal.getsignal(number) for number in NUMBERS}
    real = signal.signal

    def set_handler(number: int, handler: Any) -> None:
        real(number, handler)

    with monkeypatch.context() as patch:
        patch.setattr(signal, "signal", set_handler)
        with Stop().listening():
            pass
    assert {signal.getsignal(number) for number in NUMBERS} == {signal.SIG_DFL}
    for number, handler in plain.items():
        signal.signal(number, handler)
