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


def test_a_second_try_asks_for_gpus_in_one_way() -> None:
    """Where --gpus-per-task was refused, GRES takes its place in the same shell."""
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH", "DEVICE", "GRES"))
    }
    words = f'export DEVICE=gpu; . "{SITE}"; export GRES=gpu:4; . "{SITE}"; env | grep ^SBATCH_'
    done = subprocess.run(["bash", "-c", words], env=kept, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "SBATCH_GRES=gpu:4\n"


@pytest.mark.parametrize(
    ("before", "python"),
    [("unset VENV; ", "venv/bin/python"), ("VENV=; ", "python"), ("VENV=mine; ", "mine/bin/python")],
)
def test_the_environment_that_was_named_is_taken(tmp_path: Path, before: str, python: str) -> None:
    """By default the one beside jobs/; with `VENV=` the python that the modules bring."""
    (tmp_path / "jobs").symlink_to(SITE.parent)
    for name in ("venv", "mine"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "activate").write_text(f"python() {{ echo {name}/bin/python; }}\n")
    words = f"python() {{ echo python; }}; {before}. jobs/launch.sh; python"
    done = subprocess.run(["bash", "-c", words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, f"{python}\n"), done.stderr
