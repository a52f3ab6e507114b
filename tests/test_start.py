"""Ending the job: what was printed before arrives."""

import select
import subprocess
import sys
import time

from mpitrain.mpi.process import PRINTING


def test_an_abort_waits_until_the_last_line_is_read() -> None:
    """A launcher's helper that is late on a busy node drops what it has not read when the job ends."""
    program = "from mpitrain.mpi import abort; print('last words'); abort(3)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None and select.select([process.stdout], [], [], 60)[0]
        time.sleep(PRINTING + 2)
        assert process.poll() is None
        assert process.communicate(timeout=60)[0].startswith(b"last words\n") and process.returncode == 3
    finally:
        process.kill()
