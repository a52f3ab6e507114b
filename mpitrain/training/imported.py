"""The model that `model.import` names, and what a run folder keeps of it."""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import msgspec

from mpitrain.checkpoint.documents import checksum
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.errors import BadInput
from mpitrain.models import torch_start
from mpitrain.training import user_code

if TYPE_CHECKING:
    from mpitrain.models.torch_module import Loss, TorchModel

NAME = "model.json"
GIVEN = "python:model"  # stands for a module that train was given, which no name leads to


@dataclass(frozen=True)
class ImportOptions:
    """The keys of [model] and others that a module is built by."""

    spec: str
    options: Mapping[str, object] = field(default_factory=dict)
    loss: str = ""
    output: Literal["softmax", "logistic"] = "softmax"
    l2: float = 0.0
    l2_biases: bool = False
    seed: int = 1
    bf16: bool = False

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"model.import = {self.spec!r}"


@dataclass(frozen=True)
class Shown:
    """What is known beside the configuration: the folder of the `run` that goes on or is used; `say` tells the user
    whose code is executed then; `build` is what Python was given instead of a name."""

    run: Path | None = None
    say: Callable[[str], None] = lambda line: None
    build: Callable[..., object] | None = None


class Kept(msgspec.Struct, frozen=True):
    """model.json: what the module was built of. `files` are the checksums of the sources, per key."""

    spec: str = msgspec.field(name="import")
    loss: str
    options: dict[str, object]
    input_shape: list[int]
    classes: int
    parameters: list[tuple[str, list[int]]]
    files: dict[str, dict[str, str]]
    torch: str


def imported(
    options: ImportOptions,
    shape: tuple[int, ...],
    classes: int,
    device: Cpu = CPU,
    shown: Shown = Shown(),
) -> "TorchModel":
    """The model on this device, for inputs of this shape, [window, dims] or [h, w, c]. Raises BadInput naming a key."""
    torch_start.require("model.import")
    from mpitrain.models.torch_module import TorchModel

    run, kept = shown.run, None if shown.run is None else read(shown.run)
    specs = {key: spec for key, spec in (("model.import", options.spec), ("model.loss", options.loss)) if spec}
    found = {}
    for key, spec in specs.items():
        where = None
        if run is not None and kept is not None and user_code.is_file(spec) and spec in (kept.spec, kept.loss):
            where = user_code.folder_to_use(key, spec, run, kept.files.get(key, {}), shown.say)
        if key == "model.import" and shown.build is not None:
            continue
        if spec == GIVEN:
            raise BadInput(f"{key} = {spec!r}: the run was given its module in Python; give it to load or train again")
        found[key] = user_code.function(key, spec, where)
    build = shown.build or found["model.import"]
    seen = (shape[2], *shape[:2]) if len(shape) == 3 else tuple(shape)
    model = TorchModel(
        lambda seed: build(seen, classes, **copy.deepcopy(dict(options.options))),
        shape,
        classes,
        name=options.name,
        output=options.output,
        loss=cast("Loss", found["model.loss"].function) if "model.loss" in found else None,
        l2=options.l2,
        l2_biases=options.l2_biases,
        seed=options.seed,
        bf16=options.bf16,
        place=device.place(),
    )
    model.documents = _documents(options, model, seen, found)
    return model


def _documents(
    options: ImportOptions, model: "TorchModel", seen: tuple[int, ...], found: Mapping[str, user_code.Named]
) -> dict[str, str]:
    """The files of a run folder, by name."""
    import torch

    texts = {key: each.texts() for key, each in found.items()}
    kept = Kept(
        options.spec,
        options.loss,
        dict(options.options),
        list(seen),
        model.classes,
        [(p.name, list(p.shape)) for p in model.layout.parameters],
        {key: {name: checksum(text) for name, text in own.items()} for key, own in texts.items()},
        str(torch.__version__),
    )
    copies = {f"{user_code.FOLDER}/{name}": text for own in texts.values() for name, text in own.items()}
    return {NAME: json.dumps(msgspec.to_builtins(kept), indent=1) + "\n", **copies}


def read(run: Path) -> Kept | None:
    """The record in a run folder, None where there is none. Raises BadInput naming the file."""
    path = run / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Kept)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise BadInput(f"{path}: {error}") from error
