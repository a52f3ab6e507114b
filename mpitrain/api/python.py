"""Train and use a network from Python: `mpitrain.train` and `mpitrain.load`."""

import copy
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpitrain.api.options import TrainOptions, consistent, folder_of
from mpitrain.api.train import configured
from mpitrain.config import flat, overrides_of
from mpitrain.errors import BadInput, TrainingFailed
from mpitrain.flat import Array, blocks
from mpitrain.monitoring.evaluation import TOGETHER
from mpitrain.mpi import Transport, end_as_commands_do
from mpitrain.mpi.agreement import agreed, ending_together
from mpitrain.sampling.rng import undisturbed
from mpitrain.signals import Stop
from mpitrain.start import first_deadline
from mpitrain.trained import model as trained
from mpitrain.trained import posteriors
from mpitrain.training.run_code import GIVEN

if TYPE_CHECKING:
    import torch

Given = Callable[..., object]  # a torch.nn.Module, or a function that builds one


def train(
    config: str | Path | Mapping[str, object] | None = None,
    model: Given | None = None,
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    trust: bool = False,
    new_code: bool = False,
) -> dict[str, Any]:
    """Train as `python -m mpitrain` does, and return the summary, as in summary.json, with the `run_folder`.

    `config` is a TOML file or a table such as `{"algorithm": {"name": "easgd"}, "training.epochs": 2}`. `model` is a
    torch.nn.Module, or a function `build(input_shape, classes, **options)` that makes one, instead of `model.import`.
    `out` and `resume` are run folders, as on the command line, and so are `trust` and `new_code`: a run is resumed with
    the code that it was trained with, or with `new_code` with the files that it names as they are now; standard error
    says which are executed; what another user's folder names is executed only with `trust`.

    Under mpirun all ranks call this together, and all get the summary. Without it, as in a notebook, it is one rank.
    Raises BadInput for input that cannot be used, naming key or file, on all ranks; a program that does not catch it
    ends with that line and status 2. Raises TrainingFailed where the training failed, which ends jobs of several ranks.
    """

    def options() -> TrainOptions:
        if not isinstance(config, str | Path | Mapping | None):
            raise BadInput(f"config: of type {type(config).__name__}, not the path of a TOML file or a table of keys")
        if not (model is None or callable(model)):
            raise BadInput(f"model: of type {type(model).__name__}, neither a torch.nn.Module nor what builds one")
        overrides = overrides_of(config) if isinstance(config, Mapping) else []
        told = TrainOptions(
            Path(config) if isinstance(config, str | Path) else None,
            (*overrides, *([] if model is None else [f"model.import={_named(model)}"])),
            out=folder_of("out", out),
            resume=folder_of("resume", resume),
            trust=trust,
            new_code=new_code,
            build=None if model is None else _function(model),
        )
        return consistent(told, python=True)

    keys = flat(config) if isinstance(config, Mapping) else {}
    end_as_commands_do()  # also where a rank does not come
    transport = Transport(deadline=first_deadline([f"run.deadline={keys.get('run.deadline')}"]))
    return dict(json.loads(_trained_by(transport, options)))


def _trained_by(transport: Transport, told: Callable[[], TrainOptions]) -> str:
    """The summary of a training by all ranks, as JSON. Collective."""
    stop = Stop()
    found: list[str] = []
    refused: list[BadInput] = []

    def action() -> int:
        folders: list[Path] = []
        try:
            options = agreed(transport, told, "the arguments")
            status = configured(transport, options, stop, folders.append)
        except BadInput as error:
            if transport.size > 1 and not error.agreed:  # the other ranks are waiting for this one
                raise
            error.agreed = True
            refused.append(error)
            return 2
        found.append(transport.broadcast(_summary(folders), "the summary").decode())
        return status

    with stop.listening(), undisturbed():
        status = ending_together(transport, action)
    if refused:
        raise refused[0]
    if not found:
        raise TrainingFailed(f"the training failed with status {status}")
    return found[0]


def _summary(folders: list[Path]) -> bytes:
    """summary.json and where it is, on the rank that has a run folder."""
    if not folders:
        return b""
    folder = folders[-1]  # it may have moved
    told = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return json.dumps({**told, "run_folder": str(folder)}).encode()


def _function(model: Given) -> Given:
    """A function that builds the module, which may be one itself: each call copies it as it is."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        whole = copy.deepcopy(model)
        return lambda input_shape, classes: copy.deepcopy(whole)
    return model


def _named(model: Given) -> str:
    """The name by which the function can be imported again; GIVEN if there is none."""
    module, name = getattr(model, "__module__", None), getattr(model, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier() or isinstance(model, type):
        return GIVEN
    return f"{module}:{name}" if getattr(sys.modules.get(module), name, None) is model else GIVEN


@dataclass(frozen=True)
class Trained:
    """A trained model; `run` describes it: its configuration, what it was trained on, checkpoint and samples."""

    run: trained.TrainedModel

    def __repr__(self) -> str:  # without the numbers, which notebooks would print
        return f"Trained({str(self.run.run)!r}, checkpoint {self.run.checkpoint.name!r})"

    def predict(self, inputs: Array, output: str = "posteriors") -> Array:
        """Float32 rows [n, classes] for inputs as the shards hold them: images [n, h, w, c] in pixels, or frames
        [n, window, dims]. They are cropped to the centre and normalised as in training.

        `output`: "posteriors" or "log-posteriors". Raises BadInput if the inputs do not fit.
        """
        if output not in ("posteriors", "log-posteriors"):
            raise BadInput(f"output = {output!r}: posteriors or log-posteriors")
        self.run.require_rows("predict")
        network, parameters = self.run.network, self.run.parameters
        prepared = self._prepared(np.asarray(inputs))
        rows = np.empty((len(prepared), network.classes), np.float32)
        for part in blocks(len(prepared), TOGETHER):
            with undisturbed():
                z = network.outputs(parameters, prepared[part])
            rows[part] = posteriors.convert(z, network.output, output, None)
        return rows

    def parameters(self) -> dict[str, Array]:
        """Copies of the trained parameters by name."""
        views = self.run.network.layout.views(self.run.parameters)
        return {name: view.copy() for name, view in views.items()}

    def module(self) -> "torch.nn.Module":
        """A torch.nn.Module with the trained parameters and what belongs to them, in evaluation mode.

        Raises BadInput if the network is not made of PyTorch.
        """
        from mpitrain.models.torch.module import standalone

        return standalone(self.run.network, self.run.parameters)

    def _prepared(self, inputs: Array) -> Array:
        """Inputs as the network sees them; the caller has normalised by speaker or utterance."""
        data, told, dtype = self.run.config.data, self.run.origin, self.run.parameters.dtype
        wanted = tuple(told.shape if told.kind == "images" else self.run.network.input_shape[:2])
        mean, scale = self.run.moments(dtype)
        if inputs.shape[1:] != wanted:
            raise BadInput(f"inputs: of shape {list(inputs.shape)}, not [n, {', '.join(map(str, wanted))}]")
        if told.kind == "images" and data.crop:
            top, left = ((length - data.crop) // 2 for length in wanted[:2])
            inputs = inputs[:, top : top + data.crop, left : left + data.crop]
        return np.ascontiguousarray((inputs.astype(dtype) - mean) * scale)


def load(
    run: str | Path,
    checkpoint: str | None = None,
    model: Given | None = None,
    *,
    trust: bool = False,
    new_code: bool = False,
) -> Trained:
    """The trained model of a run folder: of its newest checkpoint, or of the one named, such as "best".

    `model` is what `train` was given, if that was a module or a function that a run folder cannot name. A network of
    the user's own is code, of which is said on standard error what is executed: that which the run was trained with, or
    with `new_code` the files that it names as they are now. Code that another user's folder names is executed only with
    `trust`. Raises BadInput naming folder or file.
    """
    build = None if model is None else _function(model)
    return Trained(trained.load(Path(run), checkpoint, build, trust=trust, new_code=new_code))
