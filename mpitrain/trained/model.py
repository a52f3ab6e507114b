"""A trained network, read from its run folder."""

import hashlib
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain import checkpoint, inputs, origin
from mpitrain import config as configuration
from mpitrain.config import Config
from mpitrain.data.corpus import Corpus
from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.models import Network
from mpitrain.origin import Origin
from mpitrain.report.runs import read_records


@dataclass(frozen=True)
class Model:
    """`parameters` are what the run's summary is about: the centre of EASGD, the average where one is kept, else θ."""

    run: Path
    config: Config
    origin: Origin
    network: Network
    parameters: Array
    checkpoint: Path
    samples: int  # that it was trained on

    @property
    def sha256(self) -> str:
        """Of the little-endian float32 bytes of the parameters, as in summary.json."""
        return hashlib.sha256(self.parameters.astype("<f4").tobytes()).hexdigest()

    @property
    def output(self) -> str:
        """What the network's outputs go through: "softmax" or "logistic"."""
        return type(self.network.loss).__name__.lower()

    def open(self, path: Path | None, part: str, **changes: Any) -> Corpus:
        """A part of a shard folder, None for the run's own, as the network is to see it. Raises BadInput."""
        return inputs.open_held_out(self.config, self.folder(path), part, self.origin, **changes)

    def folder(self, path: Path | None) -> Path:
        """The shard folder, the run's own for None."""
        return inputs.data_path(self.config) if path is None else path

    def described(self) -> dict[str, Any]:
        """What tells this model from others, for whatever is made with it."""
        named = {"run": str(self.run), "checkpoint": self.checkpoint.name, "trained_samples": self.samples}
        return {**named, "parameters_sha256": self.sha256}


def load(run: Path, name: str | None = None, quiet: bool = False) -> Model:
    """The model of a run's newest whole checkpoint, or of the one called `name`; "best": of the least held-out error.

    Newer ones that are torn are named on standard error unless `quiet`. Raises BadInput naming folder or file.
    """
    if not run.is_dir():
        raise BadInput(f"{run}: no such run folder")
    if not (run / "config.toml").exists():
        raise BadInput(f"{run}: not a run folder, it has no config.toml")
    config = configuration.load(run / "config.toml", [])
    trained_on = origin.read(run) or origin.of_part(inputs.data_path(config))
    network = inputs.network_of(config, inputs.seen_shape(config, trained_on), trained_on.classes)
    found, skipped = _best(run) if name == "best" else checkpoint.find(run / "checkpoints", name)
    for line in () if quiet else skipped:
        print(f"mpitrain: {line}", file=sys.stderr)
    dtype = np.dtype(config.training.dtype)
    parameters, samples = checkpoint.load_model(found, config.algorithm, network.layout, dtype)
    return Model(run, config, trained_on, network, parameters, found, samples)


def _best(run: Path) -> tuple[Path, list[str]]:
    """The whole checkpoint with the least error, on dev where there is such a part, else on test, and no skipped ones.

    Only those count whose very parameters were evaluated, such as a finished run's last. Raises BadInput.
    """
    evaluated = {}
    for record in read_records(run / "metrics.jsonl")[0]:
        error = record.get("dev_error", record.get("test_error"))
        if record["event"] == "evaluate" and error is not None:
            evaluated[f"{record['samples']:012d}"] = error
    there = [name for name in sorted(evaluated, key=evaluated.__getitem__) if (run / "checkpoints" / name).is_dir()]
    for name in there:
        with suppress(BadInput):
            return checkpoint.find(run / "checkpoints", name)
    raise BadInput(f"{run / 'checkpoints'}: none of these was evaluated; --checkpoint takes one by name")
