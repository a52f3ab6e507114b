"""jobs/site.sh as the README has users read it."""

import os
import subprocess
from pathlib import Path

import pytest

SITE = Path(__file__).parents[2] / "jobs" / "site.sh"


@pytest.mark.parametrize(("device", "asked"), [("gpu", "gpu 1"), ("", "auto ")])
def test_the_device_that_was_exported_reaches_the_job(device: str, asked: str) -> None:
    """With a GPU a rank asked of Slurm, in the shell that calls sbatch."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH", "DEVICE"))}
    exported = f"export DEVICE={device}; " if device else ""
    words = f'{exported}. "{SITE}" && bash -c \'echo "$DEVICE ${{SBATCH_GPUS_PER_TASK:-}}"\''
    done = subprocess.run(
        ["bash", "-c", words], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"{asked}\n"
