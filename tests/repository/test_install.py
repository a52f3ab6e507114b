"""What `pip install` puts in place."""

import configparser
import os
import re
import runpy
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

import mpitrain

ROOT = Path(__file__).resolve().parents[2]


def test_the_oldest_versions_are_those_of_setup_cfg() -> None:
    """With which the tests beside Open MPI run."""
    setup = (ROOT / "setup.cfg").read_text()
    told = runpy.run_path(str(ROOT / "tests/run.py"))["oldest_versions"](setup).splitlines()
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    required = config["options"]["install_requires"].strip().splitlines()
    assert [re.split("[#,]", line)[0].strip().replace(">=", "==") + ".*" for line in required] == told[: len(required)]
    assert "pytest == 9.*" in told and all(re.fullmatch(r"[\w-]+ == [\d.]+\.\*", line) for line in told)


def test_products_of_doubles_keep_to_their_stack() -> None:
    """Some OpenBLAS overrun it, with the kernels that `prepare_environment` may choose, from 384 products a sum on."""
    if "avx2" not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("a CPU without these kernels")
    product = "import numpy; numpy.ones((64, 384)) @ numpy.ones((384, 64))"
    environment = {**os.environ, "OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_NUM_THREADS": "1"}
    assert subprocess.run([sys.executable, "-c", product], env=environment, timeout=100).returncode == 0


def test_every_package_is_listed() -> None:
    """setup.cfg names the packages one by one, as kernels/ lies outside mpitrain/."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = set(config["options"]["packages"].split())
    there = {".".join(path.parent.relative_to(ROOT).parts) for path in ROOT.glob("mpitrain/**/__init__.py")}
    assert listed == there | {"mpitrain.examples", "mpitrain.jobs", "mpitrain.kernels"}


def test_the_source_distribution_holds_every_folder() -> None:
    """Of those that are in the repository; the packages are in it without being named."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a checkout")
    folders = {line.partition("/")[0] for line in tracked.stdout.splitlines() if "/" in line and line[0] != "."}
    grafted = {line.split()[1] for line in (ROOT / "MANIFEST.in").read_text().splitlines() if line.startswith("graft")}
    assert folders == grafted | {"mpitrain", "kernels"}


def test_every_job_file_is_package_data() -> None:
    """A wheel holds what `mpitrain jobs` writes."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    patterns = config["options.package_data"]["mpitrain.jobs"].replace(",", " ").split()
    listed = {path for pattern in patterns for path in (ROOT / "jobs").glob(pattern)}
    assert listed == {path for path in (ROOT / "jobs").rglob("*") if path.is_file()}


def test_every_cluster_is_package_data() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert config["options.package_data"]["mpitrain.api.clusters"] == "*.toml"
    assert len(list((ROOT / "mpitrain/api/clusters").glob("*.toml"))) == 5


def test_a_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    """What setuptools gathers for one: such as the configurations and fonts of the benchmarks."""
    pytest.importorskip("setuptools")
    tracked = subprocess.run(["git", "ls-files", "mpitrain"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a checkout")
    build = [sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", "build_py", "--build-lib"]
    subprocess.run([*build, str(tmp_path)], cwd=ROOT, capture_output=True, check=True, timeout=100)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    benchmarks = {f"mpitrain/report/benchmarks/{name}" for name in ("bytes.toml", "glyphs.toml", "fonts.txt")}
    assert {*tracked.stdout.splitlines(), *benchmarks, "mpitrain/examples/transformer/transformer.py"} <= found


def test_the_citation_names_this_version() -> None:
    """setup.cfg and the site take it from the package."""
    assert f"\nversion: {mpitrain.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_digits_are_installed() -> None:
    """Under 100 kB, both parts."""
    shards = [path for path in (files(mpitrain) / "data").iterdir() if path.name.endswith(".h5")]
    assert len(shards) == 2 and sum(len(path.read_bytes()) for path in shards) < 100_000
