"""What the tests share: the MPI library in the header, and launches of the program under an outside deadline."""

import importlib.util
import io
import os
import select
import shutil
import signal
import subprocess
import sys
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from mpitrain.start import prepare_environment

prepare_environment()  # before NumPy is loaded: what runs in this process computes the bits that launched ranks do

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from mpitrain import config as configuration
from mpitrain.__main__ import main
from mpitrain.device import CPU, Cpu
from mpitrain.flat import Layout, Parameter
from mpitrain.monitoring.counters import RankFigures
from mpitrain.mpi.process import PROCESS
from mpitrain.sampling.batch import Batch, SampleForm
from mpitrain.sampling.queue import Queue
from mpitrain.signals import Stop
from mpitrain.training.context import Session, fresh
from mpitrain.training.gradients import Learner, orders_of

PROCESS.start()  # the tests use MPI's errors and statuses
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")  # on a busy machine any example may take long
settings.register_profile("quick", settings.get_profile("patient"), max_examples=10)

MPIRUN = Path(sys.executable).with_name("mpirun")
ROOT = Path(__file__).resolve().parent.parent
FAULTS, WARM = (str(Path(__file__).with_name(f"{name}.py")) for name in ("faults", "warm"))
COLD = {"jobs", "processes"}  # folders of tests whose ranks start as a user's do
FAKE = Path(__file__).with_name("fake_cupy") / "cupy" / "__init__.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--device gpu`: launched trainings and the tests of the device and its kernels run on the GPU.

    `--instants`: how often the tests with random instants try one.
    """
    parser.addoption("--device", choices=("cpu", "gpu"), default="cpu", help="what trainings are launched on")
    parser.addoption("--instants", type=int, default=16, help="trainings ended by a signal at a random instant")
    parser.addoption("--recipes", default="some", help="`all`: train by the recipes that take minutes, too")
    parser.addoption("--lost", default="some", help="`all`: lose a rank in every phase of every algorithm")
    parser.addoption("--mutations", type=int, default=20, help="spoilt files of each format")
    parser.addoption("--seeds", type=int, default=12, help="of the search for faults, for each protocol, twice")
    parser.addoption("--within", type=float, help="seconds: the shortest tests that together take so long")
    parser.addoption("--kills", type=int, default=100, help="SIGKILLs at random instants of writing checkpoints")


def pytest_configure(config: pytest.Config) -> None:
    """Without `--device gpu` nothing sees a GPU: not the program that tests launch, not what the stand-in imports."""
    if config.getoption("--device") == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if config.getoption("--within"):
        config.pluginmanager.register(Shortest(config))


def pytest_report_header() -> str:
    """Name the MPI library and this rank, when the tests run under mpirun."""
    if "--with-mpi" not in sys.argv:
        return "MPI: not loaded"
    from mpi4py import MPI

    vendor = MPI.Get_library_version().splitlines()[0]
    return f"MPI: {vendor}, rank {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size}"


@pytest.fixture(scope="session")
def stand_in() -> Any:
    """CuPy's stand-in over host memory, under a name of its own, so that the true one can be there too."""
    if shutil.which("g++") is None:
        pytest.skip("g++, which compiles the kernels for the host, is not installed")
    spec = importlib.util.spec_from_file_location("fake_cupy", FAKE, submodule_search_locations=[str(FAKE.parent)])
    assert spec is not None and spec.loader is not None
    sys.modules["fake_cupy"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def cupy(request: pytest.FixtureRequest) -> Any:
    """CuPy with `--device gpu`, else the stand-in."""
    if request.config.getoption("--device") == "gpu":
        return pytest.importorskip("cupy", reason="CuPy is not installed")
    return request.getfixturevalue("stand_in")


@pytest.fixture
def gpu(cupy: Any) -> Iterator[Any]:
    """The device: the true one with `--device gpu`, else the stand-in over host memory."""
    from mpitrain.device.gpu import Gpu

    device = Gpu(cupy, 0)
    yield device
    device.compute.__exit__()


@pytest.fixture
def torch_gpu(cupy: Any, gpu: Any) -> Iterator[Any]:
    """The device for modules of PyTorch's: with the stand-in, whose streams PyTorch heeds."""
    torch = pytest.importorskip("torch", reason="needs PyTorch (the extra mpitrain[torch])")
    with cupy.torch_cuda.standing_in(torch) if cupy.__version__ == "0.fake" else nullcontext():
        if not torch.cuda.is_available():
            pytest.skip("this PyTorch has no CUDA")
        yield gpu


@dataclass(frozen=True)
class Ended:
    """How a launched program ended."""

    status: int
    out: str
    err: str


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[str]]]:
    """The words in place of `python` with which ranks start that have loaded the program's libraries, and modules."""
    servers: dict[tuple[str, ...], tuple[str, subprocess.Popen[bytes]]] = {}

    def words(modules: tuple[str, ...]) -> list[str]:
        if modules not in servers:
            path = str(tmp_path_factory.mktemp("warm") / "socket")
            server = start([sys.executable, WARM, "serve", path, *modules], ROOT, stdin=subprocess.PIPE, text=False)
            servers[modules] = path, server
            if not select.select([server.stdout], [], [], 120)[0] or server.stdout.readline() != b"ready\n":
                server.kill()
                pytest.fail(f"no warm ranks:\n{server.communicate()[1].decode()}")
        return [sys.executable, "-IS", WARM, "rank", servers[modules][0]]

    yield words
    for _, server in servers.values():
        server.communicate(timeout=60)


@pytest.fixture
def launch(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Ended]:
    """Run `mpirun -n RANKS python -m mpitrain ARGUMENTS` in a temporary folder; fail when it takes too long.

    Trainings run on the GPU with `--device gpu`, unless the test names a device. Ranks are `warm`, with what a module's
    LOADED names besides, but for tests of how they start and end: in the folders COLD, with an environment or faults of
    a test's own, or `cold`.
    """
    if not MPIRUN.exists():
        pytest.skip("this environment has no mpirun of its own")
    gpu = request.config.getoption("--device") == "gpu"
    always_cold = gpu or request.path.parent.name in COLD or "monkeypatch" in request.fixturenames

    def run(
        ranks: int,
        *arguments: str,
        deadline: float = 300,
        program: tuple[str, ...] = ("-m", "mpitrain"),
        cold: bool = False,
    ) -> Ended:
        own = any(argument.startswith("run.device=") for argument in arguments)
        if program == ("-m", "mpitrain") and gpu and _trains(arguments) and not own:
            arguments = (*arguments, "--set", "run.device=gpu")
        python = [sys.executable]
        if not (cold or always_cold or program[0] in ("-c", FAULTS)):
            python = request.getfixturevalue("warm")(getattr(request.module, "LOADED", ()))
        process = start([str(MPIRUN), "-n", str(ranks), *python, *program, *arguments], tmp_path)
        return finish(process, deadline)

    return run


#: A node on which each rank has a core of its own.
NODE = """
nodes = 1
ranks_per_node = 8
cores_per_node = 8
gradient = {seconds = 1e-4, seconds_per_sample = 2e-5, spread = [0.9, 1.0, 1.3]}
within_node = {latency = 1e-6, bandwidth = 5e9}
between_nodes = {latency = 3e-5, bandwidth = 1.25e8}
"""


@pytest.fixture
def simulated(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Ended]:
    """As `launch` for trainings, on simulated ranks in this process: for what does not depend on MPI or processes.

    With `--device gpu` the trainings are launched, unless the test changes the program, of which others know nothing.
    """
    if request.config.getoption("--device") == "gpu" and "monkeypatch" not in request.fixturenames:
        return request.getfixturevalue("launch")  # type: ignore[no-any-return]

    def run(ranks: int, *arguments: str) -> Ended:
        cluster, out, err = tmp_path / "node.toml", io.StringIO(), io.StringIO()
        cluster.write_text(NODE)
        command = ["simulate", "--cluster", str(cluster), "--ranks", str(ranks)]
        with chdir(tmp_path), redirect_stdout(out), redirect_stderr(err), Stop().listening():
            status = main([*command, *arguments])
        return Ended(status, out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def no_gpu(request: pytest.FixtureRequest) -> None:
    """For tests of what holds for `simulated` ranks alone, which `--device gpu` launches."""
    if request.config.getoption("--device") == "gpu":
        pytest.skip("trainings are not simulated on a GPU")


def refusals(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """The exit status of a command in this process, argparse's own included, and the program's lines on why."""
    try:
        status = main(list(words))
    except SystemExit as end:
        status = int(str(end.code))
    return status, [line for line in capsys.readouterr().err.splitlines() if line.startswith("mpitrain")]


def _trains(arguments: tuple[str, ...]) -> bool:
    """Whether these arguments are of the command `train`, with or without its name."""
    return not arguments or arguments[0] == "train" or arguments[0].startswith("--") or arguments[0].endswith(".toml")


@pytest.fixture
def run_command(tmp_path: Path) -> Callable[[list[str], float], Ended]:
    """Run a command in a temporary folder; fail when it takes longer than so many seconds."""
    return lambda command, deadline: finish(start(command, tmp_path), deadline)


def start(command: list[str], folder: Path, **more: Any) -> "subprocess.Popen[Any]":
    """Start a command in a process group of its own."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True, **more}
    return subprocess.Popen(command, cwd=folder, env=environment, **settings)


def finish(process: "subprocess.Popen[str]", deadline: float) -> Ended:
    """Wait for the end; kill the group and fail the test after the deadline."""
    try:
        out, err = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"no end within {deadline} s\n{out}\n{err}")
    return Ended(process.returncode, out, err)


class Counting:
    """A corpus of `samples` one-number inputs, its own indices; it remembers which were gathered."""

    shape, classes, in_memory = (1,), 2, True
    form = SampleForm(shape)

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.gathered: list[int] = []

    def gather(self, indices: np.ndarray, out: Batch, place: Any = None) -> Batch:
        """The indices themselves."""
        self.gathered.extend(int(i) for i in indices)
        out.inputs[:, 0] = indices
        out.targets[:] = 0
        return out


class Bowl:
    """A "network" of the loss ½‖θ − mean input/100‖², so that a gradient tells which samples it came from."""

    drawing = False

    def __init__(self, size: int = 5) -> None:
        self.layout = Layout([Parameter("x", (size,), ("constant", 1.0))])
        self.input_shape, self.classes, self.split = (1,), 2, 0

    def initial(self, seed: int, dtype: type = np.float64) -> np.ndarray:
        """All ones."""
        return np.ones(self.layout.size, dtype)

    def loss_and_gradient(self, theta, gradient, batch, draws=None, on_ready=None):
        """The loss and, into `gradient`, θ − mean/100."""
        np.subtract(theta, batch.inputs.mean() / 100, out=gradient)
        loss = 0.5 * float(np.dot(gradient, gradient))
        if on_ready:
            on_ready(slice(0, len(gradient)))
        return loss


def make_session(
    transport: Any,
    *settings: str,
    samples: int = 64,
    network: Any = None,
    corpus: Any = None,
    device: Cpu = CPU,
) -> Session:
    """A session on the toys above, in float64, or on what is given; `settings` override the configuration."""
    config = configuration.load(None, ["run.evaluate_every=0", "training.dtype=float64", *settings])
    network, corpus = network or Bowl(), corpus or Counting(samples)
    schedule = config.schedule(corpus.samples)
    dtype = config.training.dtype
    theta = network.initial(config.training.seed, np.dtype(dtype))
    state = fresh(config.algorithm, theta, Queue(corpus.samples, schedule.total))
    figures = RankFigures()
    learner = Learner(
        network,
        corpus,
        config.training,
        independent=config.algorithm.independent,
        orders=orders_of(config.training.seed, corpus.samples, config.algorithm.chunked),
        device=device,
        figures=figures if config.run.gradient_statistics else None,
    )
    members = list(range(transport.size))
    clock = transport.clock  # virtual in a simulation, where no message may depend on how busy this machine is
    return Session(config, transport, members, network, learner, schedule, state, clock, device=device, figures=figures)


@pytest.fixture
def session_of() -> Callable[..., Session]:
    """`make_session`, for test modules that cannot import this one."""
    return make_session


@pytest.fixture
def transport() -> Iterator[Any]:
    """All ranks of this test run, with a short deadline."""
    from mpitrain.mpi import Transport

    transport = Transport(deadline=30.0)
    yield transport
    transport.leave()


#: Whoever asks for one of these starts other programs.
LAUNCHING = {"launch", "run_command", "cluster", "link", "browser"}
LAUNCH = 20  # other tests take as long as one that starts programs, about
#: Files of few tests that take minutes.
LONG = {f"test_{name}.py" for name in ("benchmarks", "document_commands", "kills", "recipes", "signal_instants")}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `gpu` need a true one; mark those that start programs."""
    for item in items:
        if item.get_closest_marker("gpu") and config.getoption("--device") == "cpu":
            item.add_marker(pytest.mark.skip(reason="needs --device gpu"))
        assert isinstance(item, pytest.Function)
        if LAUNCHING & set(item.fixturenames) or hasattr(item.module, "subprocess"):
            item.add_marker("launches")
    if hasattr(config, "workerinput"):  # one of several: the longest files first, so that none is left at the end
        lengths = Counter[Path]()
        for item in items:
            lengths[item.path] += LAUNCH if item.get_closest_marker("launches") else 1
        items.sort(key=lambda item: (item.path.name not in LONG, -lengths[item.path], item.path))


class Shortest:
    """`--within`: keeps how long each test takes, and leaves out the longest by what is known of earlier runs.

    Tests that were never measured are run.
    """

    PLACE = "mpitrain/durations"  # in pytest's cache, which is in the folder of the project

    def __init__(self, config: pytest.Config) -> None:
        assert config.cache is not None
        self.cache, self.limit = config.cache, float(config.getoption("--within"))
        self.one_of_several = hasattr(config, "workerinput")
        self.seconds: dict[str, float] = self.cache.get(self.PLACE, {})
        self.measured: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(trylast=True)  # `-m` and `-k` have taken theirs away
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the shortest that fit."""
        by_length = sorted(items, key=lambda item: self.seconds.get(item.nodeid, 0.0))
        sums = list(accumulate(self.seconds.get(item.nodeid, 0.0) for item in by_length))
        longest = by_length[bisect(sums, self.limit) :]
        config.hook.pytest_deselected(items=longest)
        left_out = set(longest)
        items[:] = [item for item in items if item not in left_out]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add what a test's set-up, the test itself and its end have taken."""
        self.measured[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Keep it, where all tests are seen: not in one of several processes."""
        if not self.one_of_several:
            self.cache.set(self.PLACE, self.seconds | self.measured)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`pytest -n 3`: a file's tests run in one process, which makes its fixtures once. Those that use Slurm, which
    mostly wait, are spread: each process has a cluster of its own.
    """
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # by the number of tests: pytest_collection_modifyitems knows better

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if nodeid.startswith("tests/jobs/") else str(super()._split_scope(nodeid))

    return Files(config, log)
