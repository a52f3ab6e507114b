"""The GPU benchmark's kernel part, on the host: every kernel is in it and right."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mpitrain.kernels.launcher import source

from .nvrtc import files

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu" / "kernels.py"
FAKE = Path(__file__).resolve().parent.parent / "fake_cupy"
#: `apply` launches the first before itself, `accumulate` the second after itself.
INSIDE = {"check", "take_levels"}


@pytest.mark.usefixtures("stand_in")
def test_every_kernel_is_measured_and_right(tmp_path: Path) -> None:
    report = tmp_path / "kernels.json"
    command = [sys.executable, str(SCRIPT), "--elements", "5000", "--repeats", "1", "--json", str(report)]
    environment = {**os.environ, "PYTHONPATH": str(FAKE)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads(report.read_text())["kernels"]
    assert all(each["right"] and each["gigabytes_per_second"] > 0 for each in results)
    texts = [source(file) for file in files()]
    kernels = {
        name for text in texts for name in re.findall(r'"C" __global__ (?:__launch\w+\(\w+\) )?void (\w+)', text)
    }
    assert {each["kernel"] for each in results} >= kernels - INSIDE != set()
