"""A trained network, read from its run folder."""

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain import checkpoint
from mpitrain import config as configuration
from mpitrain.checkpoint import origin
from mpitrain.checkpoint.origin import Origin
from mpitrain.config import Config
from mpitrain.data.corpus import Corpus
from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.models import model as models
from mpitrain.training import inputs


@dataclass(frozen=True)
class Model:
    """`parameters` are those that the run's summary describes: the centre of EASGD, an average if there is one, else
    θ."""

    run: Path
    config: Config
    origin: Origin
    network: models.Model
    parameters: Array
    checkpoint: Path
    samples: int  # number of samples that it was trained on

    @property
    def sha256(self) -> str:
        """SHA-256 of the parameters' little-endian float32 bytes, as in summary.json."""
        return hashlib.sha256(self.parameters.astype("<f4").tobytes()).hexdigest()

    @property
    def output(self) -> str:
        """The function applied to the network's outputs: "softmax" or "logistic"."""
        return self.network.output

    def open(self, path: Path | None, part: str, **changes: Any) -> Corpus:
        """Open a part of a shard folder, None for the run's own, prepared for the network. Raises BadInput."""
        return inputs.open_held_out(self.config, self.folder(path), part, self.origin, **changes)

    def folder(self, path: Path | None) -> Path:
        """The shard folder; for None, the run's own."""
        return inputs.path_of_run(self.config, self.run) if path is None else path

    def described(self) -> dict[str, str | int]:
        """A description that identifies this model, for files made with it."""
        named: dict[str, str | int] = {
            "run": str(self.run),
            "checkpoint": self.checkpoint.name,
            "trained_samples": self.samples,
        }
        return {**named, "parameters_sha256": self.sha256}


def load(run: Path, name: str | None = None, quiet: bool = False) -> Model:
    """The model of a run's newest intact checkpoint, or of the one called `name`; "best": with the smallest held-out
    error.

    Newer ones that are torn are reported on standard error unless `quiet`. Raises BadInput naming folder or file.
    """
    if not run.is_dir():
        raise BadInput(f"{run}: no such run folder")
    if not (run / "config.toml").exists():
        raise BadInput(f"{run}: not a run folder, it has no config.toml")
    found, skipped = checkpoint.find(run / "checkpoints", name)
    for line in () if quiet else skipped:
        print(f"mpitrain: {line}", file=sys.stderr)
    checkpoint.require_intact(run, found)
    config = configuration.load(checkpoint.document(run, found, checkpoint.CONFIG), [])
    trained_on = origin.read(found) or origin.read(run) or origin.of_part(inputs.data_path(config))
    network = inputs.network_of(config, inputs.seen_shape(config, trained_on), trained_on.classes)
    dtype = np.dtype(config.training.dtype)
    parameters, samples = checkpoint.load_model(found, config.algorithm, network.layout, dtype)
    return Model(run, config, trained_on, network, parameters, found, samples)
