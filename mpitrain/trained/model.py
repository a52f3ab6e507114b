"""A trained network, read from its run folder."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from msgspec.structs import replace
from threadpoolctl import threadpool_limits

from mpitrain import checkpoint
from mpitrain import config as configuration
from mpitrain.config import Config
from mpitrain.data import origin
from mpitrain.data.corpus import Corpus
from mpitrain.data.normalising import of_pixels
from mpitrain.data.normalising import stored as moments_stored
from mpitrain.data.origin import Origin
from mpitrain.errors import BadInput, printable, say
from mpitrain.flat import Array, parameters_sha256
from mpitrain.models import model as models
from mpitrain.models.torch import start as torch_start
from mpitrain.monitoring.evaluation import Measuring
from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import agreed
from mpitrain.sampling.queue import Queue
from mpitrain.training import inputs
from mpitrain.training.context import fresh
from mpitrain.training.parts import DataSource, Shards, form_of, path_of_run, source_of
from mpitrain.training.run_code import RunFolder
from mpitrain.training.user_code import Code

T = TypeVar("T")


@dataclass(frozen=True)
class TrainedModel:
    """`parameters` are those that the run's summary describes: the centre of EASGD, an average if there is one, else
    θ."""

    run: Path
    config: Config
    origin: Origin
    network: models.Model
    parameters: Array
    checkpoint: Path
    samples: int  # number of samples that it was trained on
    code: Mapping[str, Code]  # the user's own

    @property
    def sha256(self) -> str:
        """SHA-256 of the parameters' little-endian float32 bytes, as in summary.json."""
        return parameters_sha256(self.parameters)

    def source(self, path: Path | None) -> DataSource:
        """The data of the shard folder `path`, or of the run itself if it is None. Raises BadInput."""
        if path is None and self.config.data.import_:
            return source_of(self.config, self.code)
        return self.shards(path)

    def shards(self, path: Path | None) -> Shards:
        """The shard folder `path`, or the run's own if it is None. Raises BadInput."""
        return Shards(self.config, path_of_run(self.config, self.origin) if path is None else path)

    def open(self, path: Path | None, part: str, **changes: Any) -> Corpus:
        """Open a part of the shard folder `path` (None: the run's own), prepared for the network. Raises BadInput."""
        return self.shards(path).opened(part, self.origin, **changes)

    def require_rows(self, what: str) -> None:
        """Raise BadInput unless the network has one row of outputs for each sample, as `what` needs."""
        kind = self.origin.kind
        if kind not in ("frames", "images"):
            own = "samples of data.import are prepared by their own code"
            why = "tokens have a row of outputs each" if kind == "tokens" else own
            raise BadInput(f"{what}: for frames and images; {why}: mpitrain.load(RUN).module() is the network")

    def moments(self, dtype: np.dtype | type = np.float32) -> tuple[Array, Array]:
        """Mean and scale [channels], of the corpus or of pixels; 0 and 1 for features that are normalised by speaker,
        by utterance or not at all."""
        told, how = self.origin, self.config.data.normalise
        if told.kind == "images":
            return of_pixels(how, told.statistics, told.shape[-1], dtype)
        return moments_stored(told.statistics if how == "corpus" else {}, told.shape[-1], dtype)

    def described(self) -> dict[str, str | int]:
        """A description that identifies this model, for files made with it."""
        return {
            "run": printable(str(self.run)),
            "checkpoint": self.checkpoint.name,
            "trained_samples": self.samples,
            "parameters_sha256": self.sha256,
        }


def find(run: Path, name: str | None = None, quiet: bool = False) -> tuple[Path, Config]:
    """A run's newest intact checkpoint, or the one called `name` ("best": with the smallest held-out error), and its
    configuration. No code that they name is executed.

    Newer checkpoints that are torn are reported on stderr unless `quiet`. Raises BadInput naming folder or file.
    """
    if not run.is_dir():
        raise BadInput(f"{run}: no such run folder")
    if not (run / "config.toml").exists():
        raise BadInput(f"{run}: not a run folder, it has no config.toml")
    found, skipped = checkpoint.find(run / "checkpoints", name)
    for line in () if quiet else skipped:
        say(line)
    checkpoint.require_intact(run, found)
    return found, configuration.load(found / checkpoint.CONFIG, [])


def load(
    run: Path,
    name: str | None = None,
    build: Callable[..., object] | None = None,
    exact: bool = False,
    trust: bool = False,
    new_code: bool = False,
) -> TrainedModel:
    """The model of the checkpoint that `find` finds.

    `build`: the function that makes the module, if the run was given one in Python. `exact`: compute products in
    float32, whatever run.matmul says. `trust` and `new_code`: as in `RunFolder`. Raises BadInput naming folder or file.
    """
    found, config = find(run, name)
    code = inputs.code_of(config, build, RunFolder(run, found, trust, new_code))
    return _built(run, found, config, code, build, exact)


@contextmanager
def opened(
    transport: Transport, options: argparse.Namespace, prepare: Callable[[TrainedModel], T]
) -> Iterator[tuple[TrainedModel, T]]:
    """The model that a command's options name and what `prepare` makes with it, on all ranks, in a context with the
    run's deadline and threads. Collective."""
    run, quiet, code = options.run_folder, transport.rank > 0, dict[str, Code]()
    found, config = agreed(transport, lambda: find(run, options.checkpoint, quiet), "the run")
    if config.model.import_ or config.data.import_:
        folder = RunFolder(run, found, options.trust, options.new_code)
        code = inputs.shared(transport, lambda: inputs.code_of(config, None, folder))

    def load() -> tuple[TrainedModel, T]:
        model = _built(run, found, config, code)
        return model, prepare(model)

    both = agreed(transport, load, "the run and the data")
    transport.deadline = config.run.deadline
    threads = transport.threads(config.run.threads)
    torch_start.limit_threads(threads)
    # Overflows, as of a diverged model, are seen in the results.
    with threadpool_limits(threads), np.errstate(over="ignore", invalid="ignore"):
        yield both


def _built(
    run: Path,
    found: Path,
    config: Config,
    code: Mapping[str, Code],
    build: Callable[..., object] | None = None,
    exact: bool = False,
) -> TrainedModel:
    """The model of the checkpoint `found`, built by executing the user's `code`. Raises BadInput."""
    trained_on = origin.read(found) or origin.read(run) or source_of(config, code).origin()
    as_built = replace(config, run=replace(config.run, matmul="float32")) if exact else config
    network = inputs.network_of(as_built, form_of(config, trained_on), trained_on.classes, code=code, given=build)
    zeros = np.zeros(network.layout.size, config.training.dtype)
    state = fresh(config.algorithm, zeros, Queue(0, 0))
    try:
        parameters, samples = checkpoint.load_model(found, state, config.algorithm.model_from, network.layout)
    except BadInput as error:
        if found.is_dir():
            raise
        why = f"a training has just replaced it by a newer one (run.checkpoints_kept = {config.run.checkpoints_kept})"
        raise BadInput(f"{found}: {why}; try again") from error
    model = TrainedModel(run, config, trained_on, network, parameters, found, samples, code)
    if network.holds_buffers:
        network.restore(checkpoint.load_kept(found), parameters)
        _measure(model)
    return model


def _measure(model: TrainedModel) -> None:
    """Measure the statistics of normalisation unless the checkpoint holds them: it does if its parameters were
    evaluated, as at the end and in `best`. Raises BadInput naming the checkpoint if the training part is gone."""
    if model.network.measured(model.parameters):
        return
    try:
        corpus = model.source(None).opened("train", model.origin)
    except BadInput as error:
        raise BadInput(
            f"{model.checkpoint}: holds no statistics of normalisation, and the training part, on which they would be "
            f"measured, cannot be read: {error}"
        ) from error
    Measuring(model.network, corpus, model.config.training.seed, model.parameters.dtype).run(model.parameters)
