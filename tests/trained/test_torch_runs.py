"""PyTorch modules through whole runs: every algorithm, the run folder, and what is done with it."""

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.algorithms import ALGORITHMS
from mpitrain.sampling.batch import Batch

from .conftest import make_images

torch = pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")
LOADED = ("torch._dynamo",)

NET = """
import random
import numpy
import torch
from parts import Residual
from torch import nn
from torch.nn import functional

def residual(input_shape, classes, width=4):
    assert input_shape == (1, 8, 8), input_shape
    return Residual(input_shape[0], classes, width)

class Tied(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.first, self.middle, self.again = nn.Linear(64, 24), nn.Linear(24, 24), nn.Linear(24, 24)
        self.again.weight = self.middle.weight
        self.last = nn.Linear(24, classes)
    def forward(self, x):
        x = functional.relu(self.first(x.flatten(1)))
        return self.last(functional.relu(self.again(functional.relu(self.middle(x)))))

def tied(input_shape, classes):
    return Tied(classes)

def smoothed(outputs, targets):
    return functional.cross_entropy(outputs, targets, label_smoothing=0.1)

def weighted(outputs, targets):
    return functional.cross_entropy(outputs, targets, weight=torch.ones(outputs.shape[1]))  # of float32

class Named(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.metadata, self.last = nn.Parameter(torch.zeros(classes)), nn.Linear(64, classes)
    def forward(self, x):
        return self.last(x.reshape(len(x), -1)) + self.metadata

def named(input_shape, classes):
    return Named(classes)

class Short(nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1)).to(torch.bfloat16)

def short(input_shape, classes):
    return Short(64, classes)

class Branching(nn.Linear):
    def forward(self, x):
        outputs = super().forward(x.flatten(1))
        return outputs if outputs.sum() > 0 else 2 * outputs

def branching(input_shape, classes):
    return Branching(64, classes)

class Recurrent(nn.RNNCell):
    def forward(self, x):
        return super().forward(x.flatten(1), torch.zeros(len(x), self.hidden_size))  # of float32

def recurrent(input_shape, classes):
    return Recurrent(64, classes)

class Turning(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.first, self.last = nn.Linear(64, 24), nn.Linear(24, classes)
        self.register_buffer("turn", torch.polar(torch.ones(12), torch.rand(12) * 3))
        self.register_buffer("order", torch.randperm(24))
        self.register_buffer("none", torch.zeros(0))
    def get_extra_state(self):
        return {"version": 1}
    def set_extra_state(self, state):
        raise AssertionError("a file has no such state")
    def forward(self, x):
        pairs = torch.view_as_complex(functional.relu(self.first(x.flatten(1))).unflatten(1, (12, 2)))
        return self.last(torch.view_as_real(pairs * self.turn).flatten(1)[:, self.order])

def turning(input_shape, classes):
    return Turning(classes)

def transposed(input_shape, classes):
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
    module[1].weight = nn.Parameter(torch.rand(64, classes).T)
    module.register_buffer("table", torch.rand(3, 2).T)
    return module

class Drawing(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.last = nn.Linear(64, classes)
    def forward(self, x):
        kept = torch.rand(64) + numpy.random.rand() + random.random() > 0.8
        return self.last(x.flatten(1) * kept)

def drawing(input_shape, classes):
    return Drawing(classes)

class Mixed(nn.Linear):
    def forward(self, x):
        return torch.linalg.solve(self.weight, super().forward(x).T).T

def normalised(input_shape, classes, track):
    norm = nn.BatchNorm1d(64, track_running_stats=track)
    return nn.Sequential(nn.Flatten(), Mixed(64, 64), norm, nn.Linear(64, classes))
"""

PARTS = """
from torch import nn
from torch.nn import functional

class Residual(nn.Module):
    def __init__(self, channels, classes, width):
        super().__init__()
        self.first, self.norm = nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.second, self.other = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.last = nn.Linear(4 * width, classes)
    def forward(self, x):
        x = functional.relu(self.norm(self.first(x)))
        x = functional.relu(x + self.other(self.second(x)))
        return self.last(functional.adaptive_avg_pool2d(x, 2).flatten(1))
"""

#: Trains with each algorithm; then the run folder must give the error of the summary, from raw pixels.
EVERY = """
import json, sys
import h5py, numpy as np
import mpitrain
from mpitrain.data.digits import embedded
with h5py.File(embedded() / "test-00000-of-00001.h5") as file:
    images, targets = file["images"][:], file["targets"][:]
for name in sys.argv[3:]:
    for kind in ("residual", "tied"):
        table = {"algorithm.name": name, "training.epochs": 0.3 * int(sys.argv[1]), "model.import": f"net.py:{kind}",
                 "run": {"threads": 1, "progress": "none", "device": sys.argv[2]}}
        told = mpitrain.train(table, out=f"{name}-{kind}")
        loaded = mpitrain.load(told["run_folder"])
        assert loaded.run.network.module.__class__.__name__.lower() == kind
        error = (loaded.predict(images).argmax(1) != targets).mean()
        assert abs(error - told["test_error"]) < 1.5 / len(targets), (name, kind, error, told["test_error"])
        assert told["exit_reason"] == "finished" and told["test_loss"] < 2.6, (name, kind, told)
        assert told.get("replicas_identical", True), (name, kind)
        print(name, kind, told["test_loss"])
"""

ALONE = ("sgd", "msgd", "averaged", "moving-average")
TOGETHER = tuple(name for name in ALGORITHMS if name not in (*ALONE, "hybrid"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the user's files."""
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "parts.py").write_text(PARTS)
    return tmp_path


@pytest.mark.parametrize(
    ("ranks", "names"),
    [(1, ALONE), (2, TOGETHER[::2]), (3, TOGETHER[1::2])],
    ids=["alone", "two", "three"],
)
def test_every_algorithm_trains_both(
    launch: Callable[..., Any], folder: Path, ranks: int, names: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    (folder / "every.py").write_text(EVERY)
    ended = launch(ranks, str(ranks), request.config.getoption("--device"), *names, deadline=400, program=("every.py",))
    assert ended.status == 0, ended.err
    assert len(ended.out.splitlines()) == 2 * len(names) * ranks, ended.out


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The program as one process."""
    command = [sys.executable, "-m", "mpitrain", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)


def test_the_run_folder_is_all_that_is_needed(folder: Path, monkeypatch: Any) -> None:
    """The sources are kept. They stand in for files that have changed or gone, which the user is told first; a resumed
    run has the bits of one that was not interrupted."""
    import mpitrain

    monkeypatch.chdir(folder)
    model = {"import": "net.py:residual", "options": {"width": 3}, "loss": "net.py:smoothed"}
    table = {"algorithm.name": "msgd", "model": model, "run": {"threads": 1, "progress": "none"}}
    at_once, began = (
        mpitrain.train({**table, "training.epochs": samples / 1438}, out=f"{samples}") for samples in (1280, 640)
    )
    for key in ("import", "loss"):
        assert (folder / "640/model" / key / "net.py").read_text() == NET
        assert (folder / "640/model" / key / "parts.py").read_text() == PARTS
    (folder / "parts.py").write_text("raise SystemExit('changed')\n")
    line = "640/checkpoints/000000000640/model/import/net.py, the run's copy: "
    ended = run(folder, "evaluate", "640", "--json")
    assert ended.returncode == 0 and line in ended.stderr, ended.stderr
    assert json.loads(ended.stdout)["test_loss"] == pytest.approx(began["test_loss"], rel=1e-6)
    resumed = run(folder, "--resume", "640", "--set", f"training.epochs={1280 / 1438}")
    assert resumed.returncode == 0 and line in resumed.stderr, resumed.stderr
    again = json.loads((folder / "640/summary.json").read_text())
    assert (again["samples"], again["parameters_sha256"]) == (1280, at_once["parameters_sha256"])


@pytest.mark.parametrize("kind", ["residual", "turning"])
def test_export(folder: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    """safetensors that the module's load_state_dict takes; ONNX from pixels, which onnxruntime checks. Outside, the
    module has the outputs, and makes the errors, of the run."""
    safetensors = pytest.importorskip("safetensors.torch")
    pytest.importorskip("onnxscript")
    import mpitrain
    from mpitrain.__main__ import main

    monkeypatch.chdir(folder)
    table = {"model.import": f"net.py:{kind}", "training.epochs": 0.2, "algorithm.name": "sgd"}
    told = mpitrain.train({**table, "run": {"threads": 1, "progress": "none"}}, out="run")
    assert main(["export", "run", "--format", "safetensors"]) == 0 == main(["export", "run", "--format", "onnx"])
    said = capsys.readouterr().out
    assert "onnxruntime differs by at most" in said and "on 359 samples of test" in said
    assert said.count("; without _extra_state, which is no tensor") == (kind == "turning")
    trained = mpitrain.load("run")
    again = type(trained.module())(*((1, 10, 4) if kind == "residual" else (10,))).eval()
    again.load_state_dict(safetensors.load_file("run/model.safetensors"), strict=kind == "residual")
    images, targets, expected = inside(trained)
    for module in (again, trained.module()):
        outputs = module(images).detach().numpy()
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
        assert (outputs.argmax(1) != targets).mean() == pytest.approx(told["test_error"], abs=1e-9)


@pytest.mark.parametrize("format_", ["npz", "safetensors"])
def test_export_of_tensors_that_lie_otherwise(folder: Path, monkeypatch: Any, format_: str) -> None:
    """Transposed ones, as of channels-last memory, have their elements in the file in the order of their axes."""
    load = np.load if format_ == "npz" else pytest.importorskip("safetensors.numpy").load_file
    import mpitrain
    from mpitrain.__main__ import main

    monkeypatch.chdir(folder)
    table = {"model.import": "net.py:transposed", "training.epochs": 0.01, "algorithm.name": "sgd"}
    mpitrain.train({**table, "run": {"threads": 1, "progress": "none"}}, out="run")
    assert main(["export", "run", "--format", format_]) == 0
    file = load(f"run/model.{format_}")
    for name, tensor in mpitrain.load("run").module().state_dict().items():
        np.testing.assert_array_equal(file[name], tensor.numpy(), err_msg=name)


def test_what_a_file_cannot_hold(folder: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A fixed number of samples, a branch on values, and names that npz has itself: one line. Outputs of another type
    are float32."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    import mpitrain
    from mpitrain.__main__ import main

    monkeypatch.chdir(folder)
    for kind in ("named", "short", "branching"):
        table = {"model.import": f"net.py:{kind}", "training.epochs": 0.01, "algorithm.name": "sgd"}
        mpitrain.train({**table, "run": {"threads": 1, "progress": "none"}}, out=kind)
    capsys.readouterr()
    assert main(["export", "named", "--format", "onnx", "--no-check"]) == 2
    assert "use x.shape[0]" in capsys.readouterr().err
    assert main(["export", "branching", "--format", "onnx"]) == 2
    why = r"torch\.onnx of PyTorch 2\.\S+: \w+: Could not guard on data-dependent expression .*net\.py, line \d+\)"
    said = [line for line in capsys.readouterr().err.splitlines() if "executing" not in line]
    assert len(said) == 1 and re.search(why, said[0]), said
    assert main(["export", "named", "--format", "npz"]) == 2
    assert "npz: metadata: not a name" in capsys.readouterr().err
    assert main(["export", "named", "--checkpoint", "", "--format", "npz"]) == 2
    assert "no such checkpoint" in capsys.readouterr().err
    # A sum in another order may be another number of 8 bits, so that the command's check would depend on the machine.
    assert main(["export", "short", "--format", "onnx", "--no-check"]) == 0
    images = np.random.default_rng(1).integers(17, size=(50, 8, 8, 1)).astype(np.uint8)
    outputs = onnxruntime.InferenceSession("short/model.onnx").run(None, {"images": images})[0]
    assert outputs.dtype == np.float32
    np.testing.assert_allclose(outputs, mpitrain.load("short").predict(images), rtol=2**-5)


def inside(trained: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """The test part as a module gets it, its targets, and the outputs that the run's own network has for it."""
    run, corpus = trained.run, trained.run.open(None, "test")
    room = Batch(np.empty((corpus.samples, *corpus.shape), run.parameters.dtype), np.empty(corpus.samples, np.int32))
    batch = corpus.gather(np.arange(corpus.samples), room)
    outputs = run.network.outputs(run.parameters, batch.inputs).copy()
    return torch.from_numpy(batch.inputs).permute(0, 3, 1, 2), batch.targets, outputs


def test_complex_constants_in_float64(folder: Path, monkeypatch: Any) -> None:
    """They are what they are in float32, in the run and outside."""
    import mpitrain

    monkeypatch.chdir(folder)
    table = {"model.import": "net.py:turning", "training.epochs": 0.3, "algorithm.name": "sgd"}
    errors = []
    for dtype in ("float32", "float64"):
        run = {"threads": 1, "progress": "none"}
        told = mpitrain.train({**table, "training.dtype": dtype, "run": run}, out=dtype)
        trained = mpitrain.load(dtype)
        images, _, expected = inside(trained)
        np.testing.assert_allclose(trained.module()(images).detach().numpy(), expected, rtol=1e-4, atol=1e-5)
        errors.append(told["test_loss"])
    assert errors[1] == pytest.approx(errors[0], rel=1e-4)


def test_a_module_that_draws_everywhere_repeats_to_the_bit(folder: Path, monkeypatch: Any) -> None:
    """From PyTorch, NumPy and Python: in a run, after a resume, and for predictions. A caller's own draws go on."""
    import mpitrain

    monkeypatch.chdir(folder)
    table = {"algorithm.name": "sgd", "model.import": "net.py:drawing", "run": {"threads": 1, "progress": "none"}}

    def trained(samples: int, **where: str) -> dict[str, Any]:
        return mpitrain.train({**table, "training.epochs": samples / 1438}, **where)

    def draws() -> tuple[float, ...]:
        return torch.rand(()).item(), np.random.rand(), random.random()  # noqa: NPY002

    def seed() -> None:
        for generator in (torch, np.random, random):
            getattr(generator, "manual_seed" if generator is torch else "seed")(7)

    seed()
    expected, again = draws(), draws()
    seed()
    runs = [trained(640, out="once")]
    assert draws() == expected
    runs.append(trained(640, out="twice"))
    trained(320, out="resumed")
    draws()
    runs.append(trained(640, resume="resumed"))
    assert len({(run["parameters_sha256"], run["test_loss"], run["samples"]) for run in runs}) == 1
    images = np.random.default_rng(1).integers(0, 17, (3, 8, 8, 1)).astype(np.uint8)
    seed()
    draws()
    predicted = mpitrain.load("once").predict(images)
    assert draws() == again
    np.testing.assert_array_equal(mpitrain.load("twice").predict(images), predicted)


@pytest.mark.parametrize("track", [True, False])
def test_normalisation_of_one_sample(folder: Path, monkeypatch: Any, track: bool) -> None:
    """In the last minibatch, or where there is no other to measure. No weights but the initial ones are needed before
    the training: with zeros, some modules cannot compute."""
    import mpitrain

    monkeypatch.chdir(folder)
    make_images(folder / "single", (8, 8, 1), samples=1)
    model = {"import": "net.py:normalised", "options": {"track": track}}
    table = {"algorithm.name": "sgd", "model": model, "run": {"threads": 1, "progress": "none"}}
    for place, samples, minibatch in (("", 1438, 479), ("single", 1, 1)):
        settings = {"training.epochs": 1, "training.minibatch": minibatch, "data.path": place}
        told = mpitrain.train({**table, **settings}, out=f"run{samples}")
        assert (told["samples"], told["exit_reason"]) == (samples, "finished") and np.isfinite(told["test_loss"])


def test_a_preset_goes_on_with_the_other_backend(folder: Path, monkeypatch: Any) -> None:
    """Without dropout, PyTorch's bits differ from NumPy's by rounding alone."""
    import mpitrain

    monkeypatch.chdir(folder)
    table = {"algorithm.name": "msgd", "run": {"threads": 1, "progress": "none"}}

    def trained(backend: str, samples: int, **where: str) -> float:
        told = mpitrain.train({**table, "model.backend": backend, "training.epochs": samples / 1438}, **where)
        return float(told["test_loss"])

    expected = trained("numpy", 640, out="numpy")
    assert trained("torch", 320, out="torch") != pytest.approx(expected, rel=1e-2)
    assert trained("numpy", 640, resume="torch") == pytest.approx(expected, rel=1e-3)


REFUSED = {
    "model.import = 'gone.py:build': gone.py: No such file": ("model.import=gone.py:build",),
    "model.import = 'net.py:build': there is no function build in net.py": ("model.import=net.py:build",),
    "model.import = 'net': expected 'FILE.py:function'": ("model.import=net",),
    "unexpected keyword argument 'depth'": ("model.import=net.py:tied", "model.options.depth=3"),
    "'net.py:recurrent': cannot be trained: RuntimeError: ": (
        "model.import=net.py:recurrent",
        "training.dtype=float64",
    ),
    "model.loss: cannot be computed: RuntimeError: ": (
        "model.import=net.py:tied",
        "model.loss=net.py:weighted",
        "training.dtype=float64",
    ),
    "hybrid needs fully connected layers": ("model.import=net.py:tied", "algorithm.name=hybrid"),
    "pretraining.method = 'layerwise' needs layers": ("model.import=net.py:tied", "pretraining.method=layerwise"),
    "model.width: changes a preset": ("model.import=net.py:tied", "model.width=2.0"),
    "model.options: belongs to model.import": ("model.options.depth=3",),
    "model.preset: model.import says something else": ("model.import=net.py:tied", "model.preset=digits-cnn"),
}


def test_what_does_not_fit_is_refused_in_one_line(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    from mpitrain.__main__ import main

    monkeypatch.chdir(folder)
    for reason, settings in REFUSED.items():
        words = [word for setting in settings for word in ("--set", setting)]
        assert main([*words, "--out", "refused"]) == 2
        err = capfd.readouterr().err
        assert reason in err and err.count("\n") == 1 and not (folder / "refused").exists()


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    ("caught", "given", "line"),
    [
        (False, "{'training.epoch': 1}", "unknown key training.epoch; the nearest known is training.epochs\n"),
        (True, "{'training.epoch': 1}", "unknown key training.epoch; the nearest known is training.epochs\n"),
        (False, "3", "config: of type int, not the path of a TOML file or a table of keys\n"),
    ],
)
def test_bad_input_ends_a_program_in_one_line(
    launch: Callable[..., Any], tmp_path: Path, ranks: int, caught: bool, given: str, line: str
) -> None:
    """A caller that catches the exception hears nothing else of it, and goes on."""
    call = f"mpitrain.train({given})"
    if caught:
        call = f"try:\n    {call}\nexcept ValueError as error:\n    print('caught', error)"
    (tmp_path / "program.py").write_text(f"import mpitrain\n{call}\n")
    ended = launch(ranks, program=("program.py",), deadline=60)
    if caught:
        assert (ended.status, ended.err) == (0, "")
        assert ended.out.count("caught") == ended.out.count(line.strip()) == ranks  # ranks may print into one another
    else:
        assert (ended.status, ended.err, ended.out) == (2, f"mpitrain: {line}", "")


def test_a_module_is_said_to_be_computed_by_pytorch(
    folder: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from mpitrain.__main__ import main

    monkeypatch.chdir(folder)
    assert main(["--set", "model.import=net.py:tied", "--print-config"]) == 0
    assert 'backend = "torch"' in capsys.readouterr().out


def test_without_pytorch_one_line_says_so(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PYTHONPATH", str(folder))
    (folder / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    ended = run(folder, "--set", "model.import=net.py:tied")
    assert ended.returncode == 2
    assert ended.stderr == "mpitrain: model.import needs PyTorch: pip install mpitrain[torch]\n"


def test_a_gpu_that_pytorch_cannot_use(
    folder: Path, monkeypatch: Any, capfd: pytest.CaptureFixture[str], stand_in: Any
) -> None:
    """Is an error where one was asked for, and otherwise the reason why the CPU was chosen."""
    from mpitrain.__main__ import main

    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, "cupy", stand_in)
    monkeypatch.setattr(torch.version, "cuda", None)
    words = ["--set", "model.import=net.py:tied", "--set", "training.epochs=0.1", "--set", "algorithm.name=sgd"]
    why = f"this PyTorch has no CUDA ({torch.__version__})"
    assert main([*words, "--set", "run.device=gpu", "--out", "refused"]) == 2
    assert capfd.readouterr().err == f"mpitrain: run.device = 'gpu': {why}\n" and not (folder / "refused").exists()
    assert main([*words, "--out", "run"]) == 0
    assert f"CPU ({why})" in capfd.readouterr().out.splitlines()[1]
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([*words, "--set", "run.device=gpu", "--out", "refused"]) == 2
    assert "this PyTorch finds no GPU" in capfd.readouterr().err


def test_python_trains_a_module_and_loads_it(folder: Path, monkeypatch: Any) -> None:
    """As a notebook does, in a process that goes on."""
    import mpitrain
    from mpitrain.errors import BadInput

    monkeypatch.chdir(folder)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    first = {name: p.detach().clone() for name, p in module.named_parameters()}
    table = {"algorithm": {"name": "sgd"}, "training": {"epochs": 0.5}, "run": {"threads": 1, "progress": "none"}}
    told = mpitrain.train(table, module, out="run")
    assert told["samples"] == 719 and told["run_folder"] == "run"
    for name, p in module.named_parameters():  # the caller's own is as it was
        assert torch.equal(p, first[name])
    with pytest.raises(BadInput, match="was given its module in Python"):
        mpitrain.load("run")
    trained = mpitrain.load("run", model=module)
    assert repr(trained) == f"Trained('run', checkpoint '{719:012}')"
    images = np.random.default_rng(1).integers(0, 17, (3, 8, 8, 1)).astype(np.uint8)
    assert trained.parameters()["1.weight"].shape == (10, 64)
    np.testing.assert_allclose(trained.predict(images).sum(1), 1, rtol=1e-6)
    logs = trained.predict(images, "log-posteriors")
    np.testing.assert_array_equal(trained.module()[1].bias.detach(), trained.parameters()["1.bias"])
    np.testing.assert_allclose(np.exp(logs), trained.predict(images), rtol=1e-5)
    with pytest.raises(BadInput, match=r"inputs: of shape \[3, 8, 8\], not \[n, 8, 8, 1\]"):
        trained.predict(images[..., 0])
    with pytest.raises(BadInput, match=r"unknown key training\.epoch"):
        mpitrain.train({"training.epoch": 1})
