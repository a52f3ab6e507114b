"""What rank 0 reads for all ranks, and what all ranks must have alike."""

from collections.abc import Callable
from typing import Any

MIXED = """
import os, sys, mpitrain
from mpitrain.start import rank_of
if rank_of(os.environ, 0):
    mpitrain.__version__ = "0.0.9"
from mpitrain.__main__ import main
sys.exit(main())
"""


def test_another_version_on_another_node_is_refused(launch: Callable[..., Any]) -> None:
    """As of an installation of its own, or one that was renewed while the job started."""
    ended = launch(2, "--set", "training.epochs=1", "--out", "run", program=("-c", MIXED))
    assert ended.status == 2
    assert "mpitrain: rank 1 on " in ended.err and ": has mpitrain 0.0.9, rank 0 " in ended.err
    assert "Traceback" not in ended.err
