"""Which data and which network a configuration names; the same for a training and for what is done with its result."""

import copy
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from mpitrain.config import Config
from mpitrain.data import origin as origins
from mpitrain.data.augmentation import Augmentation
from mpitrain.data.corpus import Corpus, parts
from mpitrain.data.digits import embedded
from mpitrain.data.origin import Origin
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.errors import BadInput, printable
from mpitrain.models import network as networks
from mpitrain.models import presets, torch_start
from mpitrain.models.design import Design
from mpitrain.models.model import Model
from mpitrain.training.run_code import FOLDER, NAME, ModelRecord, RunFolder, choose, folder_of
from mpitrain.training.user_code import Code

if TYPE_CHECKING:
    from mpitrain.models.torch_module import Loss, TorchModel


def data_path(config: Config) -> Path:
    """The shard folder."""
    return Path(config.data.path) if config.data.path else embedded()


def path_of_run(config: Config, run: Path) -> Path:
    """The shard folder of a run: a relative data.path is one from where the run began, or else from here.

    Raises BadInput naming both places when it is in neither.
    """
    path = data_path(config)
    told = None if path.is_absolute() else origins.read(run)
    if told is None or told.folder is None or told.folder == str(path.absolute()):
        return path
    began = Path(told.folder)
    if began.is_dir():
        return began
    if not path.is_dir():
        raise BadInput(f"data.path = {path}: neither {began}, where the run began, nor {path.absolute()} is a folder")
    return path


def at_home(config: Config, run: Path) -> Config:
    """The configuration of a run that is resumed here: `data.path` leads where it led when the run began."""
    path = path_of_run(config, run)
    if path == data_path(config):
        return config
    return msgspec.structs.replace(config, data=msgspec.structs.replace(config.data, path=str(path)))


def reading(config: Config) -> dict[str, Any]:
    """How `Corpus` reads the training part."""
    data, training = config.data, config.training
    return {
        "context": data.context,
        "dtype": training.dtype,
        "memory_limit": int(data.memory_limit_gb * 1e9),
        "augmentation": Augmentation(data.crop, data.flip, data.colour_shift, training.seed),
        "normalise": data.normalise,
        "window": data.window,
    }


def held_out(path: Path) -> list[str]:
    """The parts that are not trained on, in the order in which they are evaluated: tests first."""
    return sorted((part for part in parts(path) if part != "train"), key=lambda part: (part[:4] != "test", part))


def open_held_out(config: Config, path: Path, part: str, known: Origin, **changes: Any) -> Corpus:
    """A part as the network saw its training part: window, centre crop, the training part's own mean and deviation.

    `changes` replace arguments of `Corpus`. Raises BadInput naming the folder that does not fit the network.
    """
    known.require(origins.of_part(path, part), path, part)
    how = reading(config) | {"augmentation": Augmentation(config.data.crop), "statistics": known.statistics}
    return Corpus(path, part, **how | changes)


def trained_on(config: Config, earlier: Origin | None) -> Origin:
    """The training part, and how the run reads it; `earlier`: what a resumed run has been trained on so far.

    Raises BadInput naming the folder that does not fit that, or the key of [data] that reads it in another way.
    """
    path, context = data_path(config), config.data.context
    found = origins.of_part(path)
    how: dict[str, Any] = {"data.normalise": config.data.normalise}
    if found.kind == "frames":
        how["data.context"] = [context[0], context[-1]] if context else [0, 0]
    if found.kind == "tokens":
        how["data.window"] = config.data.window
    found = msgspec.structs.replace(found, preparation={**found.preparation, **how})
    if earlier is None:
        return found
    earlier.require(found, path, "train")
    return earlier.continued(found)


def say(line: str) -> None:
    """Tell the user something on standard error."""
    print(f"mpitrain: {printable(line)}", file=sys.stderr, flush=True)


def seen_shape(config: Config, known: Origin) -> tuple[int, ...]:
    """The shape of a sample as the network sees it: [window, dims], [h, w, c] after the crop, or [window]."""
    if known.kind == "tokens":
        return (config.data.window,)
    if known.kind == "frames":
        context = config.data.context
        return (sum((context[0], context[-1])) + 1 if context else 1, *known.shape)
    return Augmentation(config.data.crop).shape(tuple(known.shape))


def epoch_of(config: Config, known: Origin) -> int:
    """The samples of an epoch of the training part."""
    return (known.tokens - 1) // config.data.window if known.kind == "tokens" else sum(known.class_counts)


def code_of(
    config: Config,
    given: Callable[..., object] | None = None,
    run: RunFolder | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Code]:
    """The user's own code that the configuration, or the run folder that it is of, names; nothing has been executed.

    `given` stands for `model.import`. Raises BadInput naming the key, or a folder that is not to be trusted.
    """
    specs = {} if given is not None else {"model.import": config.model.import_}
    specs["model.loss"] = config.model.loss
    return choose({key: spec for key, spec in specs.items() if spec}, run, say)


def design_of(config: Config) -> Design:
    """What the configuration's network is built of. Raises BadInput naming a key of [model]."""
    model = config.model
    if model.import_:
        raise BadInput(f"model.import = {model.import_!r}: has no list of layers")
    if model.layers is not None:
        return Design(model.layers, model.output or "softmax", model.l2 or 0.0, bool(model.l2_biases))
    return presets.design(
        model.preset or presets.DEFAULT,
        width=model.width or 1.0,
        output=model.output,
        l2=model.l2,
        l2_biases=model.l2_biases,
        dropout=model.dropout,
        hidden_layers=model.hidden_layers,
    )


def network_of(
    config: Config,
    shape: tuple[int, ...],
    classes: int,
    device: Cpu = CPU,
    code: Mapping[str, Code] | None = None,
    given: Callable[..., object] | None = None,
) -> Model:
    """The network for inputs of this shape, [window, dims], [h, w, c] or of tokens [window], on this device. `code` is
    by default what the keys name; `given` builds the module instead of `model.import`. Raises BadInput naming the key
    that does not fit."""
    model = config.model
    if model.import_:
        return _imported(config, shape, classes, device, code_of(config, given) if code is None else code, given)
    if config.data.window:
        raise BadInput("data.window: networks of tokens are modules of PyTorch's, which model.import names")
    network = networks.network(design_of(config), shape, classes, device.workspace())
    if not config.by_torch:
        return network
    torch_start.require("model.backend = 'torch'")
    from mpitrain.models.torch_layers import TorchNetwork

    return TorchNetwork(network, config.run.matmul == "bf16", device.place())


def _imported(
    config: Config,
    shape: tuple[int, ...],
    classes: int,
    device: Cpu,
    code: Mapping[str, Code],
    given: Callable[..., object] | None,
) -> "TorchModel":
    """The model that `model.import` names, with the documents that a run folder keeps of it; as for `network_of`."""
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
        tokens=bool(config.data.window),
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
