"""`mpitrain jobs`, and the container's definition."""

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mpitrain.__main__ import main

ROOT = Path(__file__).resolve().parents[2]


def test_the_scripts_are_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of them, as they are; a second time nothing is overwritten."""
    assert main(["jobs", str(tmp_path)]) == 0
    assert "sbatch jobs/easgd.sbatch" in capsys.readouterr().out
    for path in (ROOT / "jobs").rglob("*"):
        if path.is_file():
            assert (tmp_path / path.relative_to(ROOT)).read_bytes() == path.read_bytes()
    (tmp_path / "jobs/site.sh").write_text("mine")
    assert main(["jobs", str(tmp_path)]) == 2
    assert f"{tmp_path}/jobs: exists already" in capsys.readouterr().err
    assert (tmp_path / "jobs/site.sh").read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["jobs", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_what_a_full_disk_has_of_them_is_removed(tmp_path: Path) -> None:
    """With one line, which names a file and the reason. Python itself would keep half a file of bytecode: `-B`."""
    program = (
        "import resource, sys; from mpitrain.__main__ import main;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500)); sys.exit(main(['jobs', '.']))"
    )
    ended = subprocess.run(
        [sys.executable, "-B", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr.count("\n"), list(tmp_path.iterdir())) == (2, 1, [])
    assert re.match(r"mpitrain: jobs/\S+: cannot be written: File too large\n", ended.stderr)


def test_the_container_installs_extras_that_exist() -> None:
    """For either MPI; apptainer itself is not needed for this."""
    text = (ROOT / "jobs/apptainer.def").read_text()
    extras = re.search(r"opt/mpitrain\[(.*?)\]", text)
    assert extras is not None
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    for mpi in ("mpich", "openmpi"):
        wanted = extras[1].replace("{{ MPI }}", mpi).split(",")
        assert set(wanted) <= set(config["options.extras_require"])
    assert {"%arguments", "%files", "%post", "%environment", "%runscript", "%test"} <= set(text.split())
