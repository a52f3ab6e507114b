"""The model that `model.import` names, and what a run folder keeps of it."""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

import msgspec

from mpitrain.device.cpu import Cpu
from mpitrain.models import torch_start
from mpitrain.training.run_code import FOLDER, NAME, ModelRecord, folder_of
from mpitrain.training.user_code import Code

if TYPE_CHECKING:
    from mpitrain.models.torch_module import Loss, TorchModel


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


def imported(
    options: ImportOptions,
    shape: tuple[int, ...],
    classes: int,
    device: Cpu,
    code: Mapping[str, Code],
    given: Callable[..., object] | None = None,
) -> "TorchModel":
    """The model on this device, for inputs of this shape, [window, dims] or [h, w, c], of the `code` of each key;
    `given` is what Python was given instead of `model.import`. Raises BadInput naming a key."""
    torch_start.require("model.import")
    from mpitrain.models.torch_module import TorchModel

    found = {key: each.function() for key, each in code.items()}
    build = given or found["model.import"]
    seen = (shape[2], *shape[:2]) if len(shape) == 3 else tuple(shape)
    model = TorchModel(
        lambda seed: build(seen, classes, **copy.deepcopy(dict(options.options))),
        shape,
        classes,
        name=options.name,
        output=options.output,
        loss=cast("Loss | None", found.get("model.loss")),
        l2=options.l2,
        l2_biases=options.l2_biases,
        seed=options.seed,
        bf16=options.bf16,
        place=device.place(),
    )
    model.documents = _documents(options, model, seen, code)
    return model


def _documents(
    options: ImportOptions, model: "TorchModel", seen: tuple[int, ...], code: Mapping[str, Code]
) -> dict[str, str]:
    """The files of a run folder, by name."""
    import torch

    kept = ModelRecord(
        options.spec,
        options.loss,
        dict(options.options),
        list(seen),
        model.classes,
        [(p.name, list(p.shape)) for p in model.layout.parameters],
        {key: {} if each.sources is None else each.sources.sums() for key, each in code.items()},
        str(torch.__version__),
    )
    copies = {
        f"{FOLDER}/{folder_of(key)}/{name}": text for key, each in code.items() for name, text in each.texts.items()
    }
    return {NAME: json.dumps(msgspec.to_builtins(kept), indent=1) + "\n", **copies}
