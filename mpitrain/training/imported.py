"""The model that `model.import` names, and what a run folder keeps of it."""

import copy
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

import msgspec

from mpitrain.config import Config
from mpitrain.device.cpu import Cpu
from mpitrain.models import torch_start
from mpitrain.training.run_code import FOLDER, NAME, ModelRecord, folder_of
from mpitrain.training.user_code import Code

if TYPE_CHECKING:
    from mpitrain.models.torch_module import Loss, TorchModel


def imported(
    config: Config,
    shape: tuple[int, ...],
    classes: int,
    device: Cpu,
    code: Mapping[str, Code],
    given: Callable[..., object] | None = None,
) -> "TorchModel":
    """The model on this device, for inputs of this shape, [window, dims] or [h, w, c], of the `code` of each key;
    `given` is what Python was given instead of `model.import`. Raises BadInput naming a key."""
    torch_start.require("model.import")
    import torch

    from mpitrain.models.torch_module import TorchModel

    options, keywords = config.model, config.model.options or {}
    found = {key: each.function() for key, each in code.items()}
    build = given or found["model.import"]
    seen = (shape[2], *shape[:2]) if len(shape) == 3 else tuple(shape)
    model = TorchModel(
        lambda seed: build(seen, classes, **copy.deepcopy(keywords)),
        shape,
        classes,
        name=f"model.import = {options.import_!r}",
        output=options.output or "softmax",
        loss=cast("Loss | None", found.get("model.loss")),
        l2=options.l2 or 0.0,
        l2_biases=bool(options.l2_biases),
        seed=config.initial_seed,
        bf16=config.run.matmul == "bf16",
        place=device.place(),
    )
    record = ModelRecord(
        options.import_ or "",
        options.loss or "",
        keywords,
        list(seen),
        classes,
        [(p.name, list(p.shape)) for p in model.layout.parameters],
        {key: {} if each.sources is None else each.sources.sums() for key, each in code.items()},
        str(torch.__version__),
    )
    model.documents = {NAME: json.dumps(msgspec.to_builtins(record), indent=1) + "\n"}
    for key, each in code.items():
        model.documents |= {f"{FOLDER}/{folder_of(key)}/{name}": text for name, text in each.texts.items()}
    return model
