"""Messages between two ranks: what waits is found."""

import time
from pathlib import Path

import pytest

from mpitrain.mpi import Transport

MESSAGES, TAG = 40, 9


@pytest.mark.mpi(min_size=2)
def test_a_receiver_finds_all_that_waits(tmp_path: Path, transport: Transport) -> None:
    """At one go, though the library takes in one message a call, and only while it is called."""
    told = Path(transport.gather_texts(str(tmp_path), "the folder")[0]) / "sent"
    if transport.rank == 1:
        for number in range(MESSAGES):
            transport.post(0, TAG, b"%03d" % number)
        told.touch()
    if transport.rank == 0:
        end = time.monotonic() + 60
        while not told.exists() and time.monotonic() < end:  # without a call of MPI
            time.sleep(0.01)
        found = []
        while (message := transport.poll(TAG)) is not None:
            found.append(message)
        assert found == [(1, b"%03d" % number) for number in range(MESSAGES)]
    transport.flush()
    transport.barrier("the end")
