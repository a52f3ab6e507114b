"""Every script of benchmarks/ runs, at its smallest size, and ends with a message when something it starts fails."""

import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.data.shards import document_arrays, write_shard

from ..conftest import MPIRUN
from ..processes.test_two_nodes import emulation
from ..report.chromium import CHROMIUM

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
DEADLINE = 500  # seconds for a script, on a busy machine


@dataclass(frozen=True)
class Trial:
    """A script's arguments, in which {out} is an empty folder and the other names are the fixtures' data.

    `ranks`: 0 without mpirun. `wants`: Python modules, or names of CONDITIONS. `variables`: of the environment.
    """

    arguments: str = ""
    ranks: int = 0
    wants: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()


SHORT = "--set training.epochs=0.05 --set run.evaluate_every=0"
TRIALS = {
    "advise/cells.py": Trial(
        "speech half {out} --budget 30s --points 2 --seeds 1 --target 0.99 --set data.path={frames} "
        "--set training.epochs=1"
    ),
    "augmentation/cost.py": Trial("--repeats 1"),
    "bits/bits.py": Trial("here --only sgd allreduce --ranks 2 --epochs 0.2"),
    "checkpoint/stops.py": Trial("asgd --width 0.02 --frames 3000 --every 0.02 --epochs 10", 3),
    "codec/exchange.py": Trial("1 100000"),
    "compute/step.py": Trial("--repeats 1", wants=("torch",)),
    "papers/elastic/admm.py": Trial("{out}/admm.png --turns 400", wants=("matplotlib",)),
    "papers/elastic/figure2.py": Trial(
        "digits {out} --taus 1 --quick --set training.epochs=0.1", wants=("matplotlib",)
    ),
    "papers/elastic/figure4.py": Trial("{out} --width 0.01 --samples 1300 --epochs 1 --rates 1 --methods easgd"),
    "papers/elastic/sweep.py": Trial(
        "{out} --quick --only workers --methods msgd downpour --epochs 0.2", wants=("matplotlib",)
    ),
    "gpu/run.sh": Trial(
        "--try {out}/gpu.json kernels steps-tf32 modules sharing-algorithms sharing-networks",
        wants=("g++",),
        variables=(f"PYTHONPATH={ROOT}/tests/fake_cupy",),
    ),
    "gpu/passing.py": Trial(
        "--bytes 4096 --repeats 1 --cuda-aware yes", 2, ("g++",), (f"PYTHONPATH={ROOT}/tests/fake_cupy",)
    ),
    "hybrid/iteration.py": Trial("--minibatch 2 --iterations 1 --width 0.05", 2),
    "hybrid/logistic.py": Trial("--steps 200"),
    "hybrid/progress.py": Trial("0.01 1", 2),
    "hybrid/speedup.py": Trial("{out} --minibatch 2 --iterations 1 --width 0.05 --ranks 1 2 --schemes a"),
    "hybrid/synthetic.py": Trial("{out} --train 200 --test 100"),
    "hybrid/table.py": Trial("{out} --set data.path={images} --seeds 1 --ranks 1 2 --set training.epochs=0.5"),
    "papers/scaling.py": Trial(
        "{out} zhang2013 {frames} --seeds 1 --set training.epochs=0.1 --set run.evaluate_every=0"
    ),
    "papers/recipes.py": Trial("{out} --only chan2014 --factors 1 --short"),
    "prepare/images.py": Trial("--pictures 20 --turns 1", wants=("PIL",)),
    "prepare/kaldi.py": Trial("--hours 0.01 --turns 1", wants=("kaldiio",)),
    "prepare/speech.py": Trial("--hours 0.005 --turns 1", wants=("espeakng_loader", "kaldi_native_fbank")),
    "loop/cost.py": Trial("resnet --rounds 1 --batches 2", 2, wants=("torch",)),
    "memory/memory.py": Trial("{out} --make 0.002", 2),
    "pull/pull.py": Trial("1000 1", 2),
    "report/pages.py": Trial("--runs 1 --records 100 --repeats 1", wants=("chromium",)),
    "scaling/ddp.py": Trial("2 1 1", wants=("torch",)),
    "scaling/scaling.py": Trial("1 2 asgd sparse-delta", 3),
    "unequal/unequal.py": Trial("{out} --seeds 1 --rates 0.4 --epochs 2 --target 1 --only asgd"),
    "unequal/earnest.py": Trial("{out} --seeds 1 --rates 0.4 --epochs 1 --target 1 --only easgd", wants=("torch",)),
    "simulation/cost.py": Trial("4 1 asgd"),
    "simulation/validate.py": Trial("{calibrated} --rounds 1 --rates --only allreduce --epochs 1"),
    "papers/sparse/forty.py": Trial("{out} {frames} epochs --set training.epochs=0.01 --set pretraining.samples=200"),
    "sparse/hosts.py": Trial(
        f"--rounds 1 --rates none --minibatches 1 1 1 --torch {sys.executable}", wants=("hosts", "torch")
    ),
    "sparse/rates.py": Trial("1 1", 2),
    "papers/sparse/start.py": Trial("{out} {frames} --peers 2 --width 0.02 --minibatches 1"),
    "papers/sparse/study.py": Trial(f"teams digits {{out}} {SHORT}"),
    "papers/speech/study.py": Trial("minibatch {frames} {out} --sizes 64 128 --layers 1 --set training.epochs=0.05"),
    "papers/staleness/zeros.py": Trial("{frames} --width 0.05 --epochs 1"),
    "papers/staleness/study.py": Trial("grid digits {out} --rates 0.1 --set training.epochs=0.05"),
    "text/models.py": Trial("{text}"),
    "torch/accuracy.py": Trial("tdnn {frames} 1 1", wants=("torch",)),
    "torch/allreduce.py": Trial("resnet 1", 2, wants=("torch",)),
    "sooner/sooner.py": Trial("speech {out} --simulated --rates 1 --seeds 1 --every 0.25 --set data.path={frames}"),
    "torch/loss.py": Trial("speech --seeds 1 --set data.path={frames} --set training.epochs=0.05", wants=("torch",)),
    "torch/presets.py": Trial("1 digits-cnn", wants=("torch",)),
    "torch/step.py": Trial("mlp float32 1", wants=("torch",)),
    "torch/workers.py": Trial("resnet 1 2", 3, wants=("torch",), variables=("MINIBATCH=8",)),
    "start/start.py": Trial("2 1"),
    "twohosts/twohosts.py": Trial("--rate none true", wants=("hosts",)),
    "versions/lockstep.py": Trial("{checkout} {checkout} --what accumulate-0.01 --turns 1"),
}
#: Scripts that others of the table run.
PARTS = {
    **{f"gpu/{name}.py": "gpu/run.sh" for name in ("kernels", "steps", "modules", "sharing")},
    "advise/halved.py": "advise/cells.py",
    "sparse/ddp_rank.py": "sparse/hosts.py",
    "unequal/slowed.py": "unequal/earnest.py",
    "twohosts/agent.sh": "twohosts/twohosts.py",
}
#: What scripts import, and nobody runs.
MODULES = {
    *("launch.py", "hybrid/model.py", "hybrid/workload.py", "papers/small.py", "prepare/turns.py"),
    *("scaling/workload.py", "torch/modules.py", "torch/workload.py"),
}
ON_RANKS = [name for name, trial in TRIALS.items() if trial.ranks]


def _without_hosts() -> str:
    twohosts = emulation()
    if why := twohosts.missing():
        return f"two hosts cannot be emulated: {why}"
    try:
        twohosts.Link("none").__enter__().__exit__(None, None, None)
    except RuntimeError as error:
        return f"two hosts cannot be emulated: {error}"
    return ""


#: By name: why a script cannot run here; "" if it can.
CONDITIONS: dict[str, Callable[[], str]] = {
    "hosts": _without_hosts,
    "chromium": lambda: "" if CHROMIUM else "Chromium is not installed",
    "g++": lambda: "" if shutil.which("g++") else "g++, which compiles the kernels for the host, is not installed",
}


def test_every_script_is_in_the_table() -> None:
    """A new one needs a line in TRIALS, with the smallest size at which it runs."""
    found = {str(path.relative_to(BENCHMARKS)) for ending in ("py", "sh") for path in BENCHMARKS.rglob(f"*.{ending}")}
    assert found == {*TRIALS, *PARTS, *MODULES} and set(PARTS.values()) <= set(TRIALS)


def test_every_folder_is_in_the_index() -> None:
    """benchmarks/README.md has a line for each."""
    scripts = [path for ending in ("py", "sh") for path in BENCHMARKS.glob(f"*/**/*.{ending}")]
    folders = {str(path.parent.relative_to(BENCHMARKS)) for path in scripts}
    index = (BENCHMARKS / "README.md").read_text()
    assert set(re.findall(r"^\| \[`([\w/]+)/`\]\(\1/\)", index, re.MULTILINE)) == folders


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small data under the names that the table uses."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(1)
    for part, count in (("train", 4000), ("test-clean", 200), ("test-noisy", 200)):
        features = rng.normal(size=(count, 20)).astype(np.float32)
        arrays = {"features": features, "utterances": np.arange(0, count + 1, 100)}
        arrays["targets"] = rng.integers(0, 200, count).astype(np.int32)
        write_shard(folder / "frames" / f"{part}-00000-of-00001.h5", "frames", arrays, {"classes": 200})
    for part, count in (("train", 200), ("test", 50)):
        arrays = {"images": rng.integers(0, 256, (count, 36, 36, 3), np.uint8)}
        arrays["targets"] = (np.arange(count) % 100).astype(np.int32)
        write_shard(folder / "images" / f"{part}-00000-of-00001.h5", "images", arrays, {"classes": 100})
    for part, count in (("train", 400), ("test", 100)):
        arrays = document_arrays([rng.integers(0, 256, count, np.uint16)])
        write_shard(folder / "text" / f"{part}-00000-of-00001.h5", "tokens", arrays, {"classes": 256})
    (folder / "calibrated" / "one-host").mkdir(parents=True)
    shutil.copy(BENCHMARKS / "cluster.toml", folder / "calibrated" / "one-host" / "cluster.toml")
    (folder / "checkout").mkdir()
    (folder / "checkout" / "benchmarks").symlink_to(BENCHMARKS)
    (folder / "checkout" / ".venv").symlink_to(sys.prefix)
    return {name: folder / name for name in ("frames", "images", "text", "calibrated", "checkout")}


def _command(name: str, arguments: list[str], program: tuple[str, ...] = ()) -> list[str]:
    """The command line of a script. It finds its neighbours in its folder, as where a user runs it."""
    trial = TRIALS[name]
    for wanted in trial.wants:
        why = CONDITIONS[wanted]() if wanted in CONDITIONS else ""
        if not why and wanted not in CONDITIONS and importlib.util.find_spec(wanted) is None:
            why = f"{wanted} is not installed"
        if why:
            pytest.skip(why)
    if not MPIRUN.exists():
        pytest.skip("this environment has no mpirun of its own")
    path = f"PATH={Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    launch = [str(MPIRUN), "-n", str(trial.ranks)] if trial.ranks else []
    python = [] if name.endswith(".sh") else [sys.executable, *program]
    script = str(BENCHMARKS / name)
    return ["env", "-u", "PYTHONSAFEPATH", path, *trial.variables, *launch, *python, script, *arguments]


@pytest.mark.parametrize("name", TRIALS)
def test_it_runs(name: str, data: dict[str, Path], run_command: Callable[..., Any], tmp_path: Path) -> None:
    """To the end, with status 0 and without a result that is no number."""
    names = {"out": tmp_path, **data}
    ended = run_command(_command(name, TRIALS[name].arguments.format(**names).split()), DEADLINE)
    assert ended.status == 0, ended.out[-3000:] + ended.err[-3000:]
    assert "Traceback" not in ended.err and not re.search(r"\b(nan|inf)\b", ended.out), ended.out + ended.err


def test_an_n_gram_by_hand() -> None:
    """Witten and Bell's weights: after an a came only b, twice; after a b an a, once; c has not been seen."""
    models = runpy.run_path(str(BENCHMARKS / "text/models.py"))
    train, test = (np.frombuffer(text, np.uint8) for text in (b"abab", b"abcb"))
    a = b = (2 + 2 / 256) / (4 + 2)
    c = 2 / 256 / (4 + 2)
    np.testing.assert_allclose(models["probabilities"](train, test, 1), [a, b, c, b])
    np.testing.assert_allclose(models["probabilities"](train, test, 2), [a, (2 + b) / 3, c / 2, b])


#: Runs a script whose second rank fails when it first reads the clock.
FAILING = """
import os, runpy, sys, time
sys.argv = sys.argv[1:]
folder = os.path.dirname(sys.argv[0])
sys.path.insert(0, folder)

def failing(clock):
    def read():
        if sys._getframe(1).f_code.co_filename.startswith(folder):
            raise RuntimeError("this rank fails")
        return clock()
    return read

if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
    time.perf_counter, time.monotonic = failing(time.perf_counter), failing(time.monotonic)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("name", ON_RANKS)
def test_a_rank_that_fails_ends_all(name: str, run_command: Callable[..., Any], tmp_path: Path) -> None:
    """With its message, while the others wait for it."""
    (tmp_path / "failing.py").write_text(FAILING)
    program = (str(tmp_path / "failing.py"),)
    ended = run_command(_command(name, TRIALS[name].arguments.split(), program), DEADLINE)
    assert ended.status != 0 and "RuntimeError: this rank fails" in ended.err, ended.out + ended.err


@pytest.mark.parametrize("name", ["scaling/scaling.py", "hybrid/iteration.py"])
def test_too_few_ranks_are_refused(name: str, run_command: Callable[..., Any]) -> None:
    """Where they would measure nothing."""
    words = _command(name, [])
    alone = [word for word in words if word not in (str(MPIRUN), "-n", str(TRIALS[name].ranks))]
    ended = run_command(alone, DEADLINE)
    assert ended.status == 2 and f"mpirun -n {TRIALS[name].ranks} python" in ended.err and not ended.out


#: Arguments with which something that the script starts fails, and what is said.
BROKEN = {
    "bits/bits.py": ("here --only sgd --ranks 1 --epochs -1", "training.epochs"),
    "papers/elastic/figure2.py": ("digits {out} --taus 1 --quick --set model.width=-1", "model.width"),
    "papers/elastic/sweep.py": ("{out} --quick --only workers --methods msgd --epochs -1", "training.epochs"),
    "prepare/speech.py": ("--hours -1 --turns 1", "--hours -1"),
    "simulation/cost.py": ("4 1 nothing", "nothing"),
    "sparse/hosts.py": ("--rounds 1 --rates none --minibatches -1 1 1", "rates.py: exit status"),
    "papers/speech/study.py": ("minibatch {frames} {out} --set model.width=-1", "model.width"),
    "torch/accuracy.py": ("tdnn {out} 1 1", "tdnn, seed 1: exit status 2"),
    "versions/lockstep.py": ("{checkout} {out} --what accumulate-0.01", "No such file"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_a_script_starts_and_fails_ends_it(
    name: str, data: dict[str, Path], run_command: Callable[..., Any], tmp_path: Path
) -> None:
    """With a message, and neither as a result nor as one that diverged."""
    arguments, said = BROKEN[name]
    names = {"out": tmp_path, **data}
    ended = run_command(_command(name, arguments.format(**names).split()), DEADLINE)
    assert ended.status != 0 and said in ended.err, ended.out + ended.err


@pytest.mark.parametrize(
    "first, seconds, said", [("exit 3", 60, "exit status 3"), ("exec sleep 60", 0.2, "no end within")]
)
def test_a_process_that_fails_or_is_late_ends_those_beside_it(first: str, seconds: float, said: str) -> None:
    """Also one that does not end when it is asked to."""
    deaf = "trap '' TERM; while :; do sleep 0.05; done"
    wait_for = runpy.run_path(str(BENCHMARKS / "launch.py"))["wait_for"]
    processes = [subprocess.Popen(["sh", "-c", line]) for line in (first, deaf)]
    with pytest.raises(SystemExit, match=said):
        wait_for("both", processes, seconds)
    assert all(process.poll() is not None for process in processes)


def test_a_run_that_a_signal_stopped_is_made_again(tmp_path: Path) -> None:
    """Its summary is of a part of the training."""
    simulate, folder = runpy.run_path(str(BENCHMARKS / "launch.py"))["simulate"], tmp_path / "run"
    settings = {"algorithm.name": "sgd", "training.epochs": 0.1, "run.progress": "none"}
    simulate(folder, 1, BENCHMARKS / "cluster.toml", settings)
    summary = folder / "summary.json"
    summary.write_text(summary.read_text().replace('"finished"', '"stopped"'))
    assert simulate(folder, 1, BENCHMARKS / "cluster.toml", settings)["exit_reason"] == "finished"
