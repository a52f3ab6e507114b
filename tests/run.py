"""Install the package beside each MPI implementation and run every test, each launch under a deadline.

    python3 tests/run.py            everything: what continuous integration runs
    python3 tests/run.py openmpi    with one implementation only
    python3 tests/run.py --quick    between two edits, in the environment of this Python: a minute of the tests that
                                    launch nothing, the shortest (the first time all of them, which is minutes)

Needs nothing but Python, except --quick: the virtual environments are made in `.tests/`. Exit status 0 when all passed.
"""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: How many ranks the tests are run on: eight with both implementations, two and four with one of them.
RANKS = {"mpich": (2, 8), "openmpi": (4, 8)}
SERIAL_DEADLINE, MPI_DEADLINE, INSTALL_DEADLINE = 2700, 600, 900  # seconds

#: Files of tests in several processes (tests/conftest.py). Many launch programs and wait for them, which leaves room
#: for a third process on two cores.
TOGETHER = ("-n", str(1 + (os.cpu_count() or 1)))
#: Those of Slurm, in two clusters, mostly wait. The recipes compute meanwhile.
SLURM, RECIPES = "tests/jobs", "tests/repository/test_recipes.py"
#: Without tests that start programs, and with fewer examples of properties and of orders of events. Of the others the
#: shortest, which take a minute on two cores, by what an earlier run has measured.
FEWER = ("-m", "not launches", f"--ignore={RECIPES}", "--within", "80")
QUICK = ("-n", "auto", *FEWER, "--hypothesis-profile", "quick", "--seeds", "2")

#: More ranks than cores, and root in containers, are what Open MPI must be told of; MPICH does not read these.
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONSAFEPATH": "1",  # the installed package, not the source beside it
    "PYTHONDONTWRITEBYTECODE": "",  # each of eight ranks would compile the tests again
}


def quick() -> int:
    """Run what a developer wants to know within a minute or two; 0 when everything passed."""
    missing = [name for name in ("pytest", "xdist", "ruff") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"{sys.executable} has no {', '.join(missing)}: pip install -e '.[mpich,test]'", file=sys.stderr)
        return 2
    failed = step("ruff", [sys.executable, "-m", "ruff", "check", "."], SERIAL_DEADLINE)
    failed += step("quick tests", [sys.executable, "-m", "pytest", "-q", "-r", "fE", *QUICK], SERIAL_DEADLINE)
    return bool(failed)


def main(implementations: list[str]) -> int:
    """Run all; 0 when everything passed."""
    failed, pythons = [], [environment(implementations[0])]
    several = ["-q", "--with-mpi", "-m", "mpi", "-p", "no:cacheprovider", *files_for_ranks()]

    def beside_slurm() -> list[str]:
        """What takes one core."""
        found = step("mypy", [pythons[0], "-m", "mypy"], SERIAL_DEADLINE)
        found += step("recipes", [pythons[0], "-m", "pytest", "-q", RECIPES], SERIAL_DEADLINE)
        pythons.extend(environment(mpi, oldest=True) for mpi in implementations[1:])
        return found

    for number, mpi in enumerate(implementations):
        python = pythons[number]
        if number == 0:
            failed += step("ruff", [python, "-m", "ruff", "check", "."], SERIAL_DEADLINE)
            failed += step("ruff format", [python, "-m", "ruff", "format", "--check", "."], SERIAL_DEADLINE)
            others = [*TOGETHER, f"--ignore={SLURM}", f"--ignore={RECIPES}"]
            failed += step("serial tests", [python, "-m", "pytest", "-q", *others], SERIAL_DEADLINE)
            with ThreadPoolExecutor(1) as beside:
                checked = beside.submit(beside_slurm)
                failed += step("tests in Slurm", [python, "-m", "pytest", "-q", "-n", "2", SLURM], SERIAL_DEADLINE)
            failed += checked.result()
        else:  # of the serial tests only these depend on the implementation
            launchers = [
                python,
                "-m",
                "pytest",
                "-q",
                *TOGETHER,
                "tests/jobs/test_launchers.py",
                "tests/processes/test_segments.py",
                "tests/processes/test_going_on.py",
                "tests/cli/test_lost_ranks.py",
            ]
            failed += step(f"{mpi}'s launchers", launchers, SERIAL_DEADLINE)
        for ranks in RANKS[mpi]:
            launch = [str(Path(python).with_name("mpirun")), "-n", str(ranks), python, "-m", "pytest"]
            failed += step(f"{mpi}, {ranks} ranks", [*launch, *several], MPI_DEADLINE)
    print(f"failed: {', '.join(failed)}" if failed else "all passed", flush=True)
    return bool(failed)


def environment(mpi: str, oldest: bool = False) -> str:
    """A virtual environment with this package and one MPI implementation, and with the newest versions of other
    packages or the oldest that setup.cfg allows; its Python."""
    folder = ROOT / ".tests" / mpi
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    install = [*pip, "--no-compile", f".[{mpi},test]"]  # what is imported is compiled then, and that is a small part
    if mpi == "mpich":  # where the serial tests run; the other environment shows that PyTorch may be missing
        install += [f".[{mpi},torch]", "torch==2.13.*"]
    if oldest:
        constraints = ROOT / ".tests" / "oldest.txt"
        constraints.write_text(oldest_versions((ROOT / "setup.cfg").read_text()))
        install += ["--constraint", str(constraints)]
    if step(f"install beside {mpi}", install, INSTALL_DEADLINE):
        sys.exit(1)
    return str(python)


def oldest_versions(setup: str) -> str:
    """The oldest versions that setup.cfg allows, as constraints for pip: numpy >= 2.0 becomes numpy == 2.0.*."""
    named = re.findall(r"([\w-]+)(?:\[\w+\])? >= ([\d.]+)", setup)
    return "".join(f"{name} == {version}.*\n" for name, version in named)


def files_for_ranks() -> list[str]:
    """The files with tests for several ranks, a tenth of all: every rank would import the others, too."""
    return sorted(str(file) for file in (ROOT / "tests").rglob("test_*.py") if "mark.mpi" in file.read_text())


def step(name: str, command: list[str], deadline: float) -> list[str]:
    """Run a command in its own process group; [name] when it failed or ran past the deadline, which kills the group."""
    print(f"== {name}", flush=True)
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **ENVIRONMENT}, start_new_session=True)
    try:
        status: int | str = process.wait(deadline)
    except subprocess.TimeoutExpired:
        status = f"no end within {deadline} s"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    print(f"== {name}: {'ok' if status == 0 else status}, {time.monotonic() - began:.0f} s", flush=True)
    return [] if status == 0 else [name]


if __name__ == "__main__":
    sys.exit(quick() if sys.argv[1:] == ["--quick"] else main(sys.argv[1:] or ["mpich", "openmpi"]))
