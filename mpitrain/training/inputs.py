"""Which network and which code a configuration names; the same for a training and for what is done with its result."""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

import msgspec

from mpitrain.config import Config, ModelOptions
from mpitrain.device.cpu import CPU, Cpu
from mpitrain.errors import BadInput
from mpitrain.models import network as networks
from mpitrain.models import presets
from mpitrain.models.design import Design
from mpitrain.models.model import Model
from mpitrain.models.torch import start as torch_start
from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import of_first
from mpitrain.sampling.batch import SampleForm
from mpitrain.training.run_code import NAME, ModelRecord, RunFolder, choose, sums, texts
from mpitrain.training.user_code import Code, specs_of

if TYPE_CHECKING:
    from mpitrain.models.torch.module import TorchModel

UNKNOWN, COUNTED = "its targets are not known to be classes", "data.classes says how many classes there are"


def code_of(
    config: Config, given: Callable[..., object] | None = None, run: RunFolder | None = None
) -> dict[str, Code]:
    """The user's own code that the configuration names, or the copies in its run folder; nothing has been executed.

    `given` stands for `model.import`. Raises BadInput naming the key, or a folder that is not to be trusted.
    """
    specs = specs_of(config)
    return choose({key: spec for key, spec in specs.items() if given is None or key != "model.import"}, run)


def shared(transport: Transport, choose: Callable[[], dict[str, Code]]) -> dict[str, Code]:
    """On all ranks, what `choose` returns on the first, which reads the files and tells the user. Collective."""
    chosen = of_first(transport, lambda: msgspec.json.encode(choose()), "the network's code")
    return msgspec.json.decode(chosen, type=dict[str, Code])


def design_of(config: Config) -> Design:
    """The design of the configuration's network. Raises BadInput naming a key of [model]."""
    model = config.model
    if model.import_:
        raise BadInput(f"model.import = {model.import_!r}: has no list of layers")
    if model.layers is not None:
        return Design(model.layers, model.output or "softmax", model.l2 or 0.0, bool(model.l2_biases))
    options = {field.name: getattr(model, field.name) for field in fields(presets.PresetOptions)}
    return presets.design(model.preset or presets.DEFAULT, **options)


def network_of(
    config: Config,
    form: SampleForm,
    classes: int,
    device: Cpu = CPU,
    code: Mapping[str, Code] | None = None,
    given: Callable[..., object] | None = None,
) -> Model:
    """The network for samples of this form, on this device. `code` is by default what the keys name; `given` builds the
    module instead of `model.import`. Raises BadInput naming the key that does not fit."""
    model = config.model
    if model.import_:
        return _imported(config, form, classes, device, code_of(config, given) if code is None else code, given)
    if config.data.window:
        raise BadInput("data.window: networks of tokens are modules of PyTorch's, which model.import names")
    if not (classes or config.data.import_):
        raise BadInput("0 classes (--classes): a network of layers needs at least one")
    if form.dtype or form.targets or not (classes or form.target_dtype):
        raise BadInput(
            f"data.import = {config.data.import_!r}: a network of layers classifies samples of numbers; others are for "
            "modules of PyTorch's, which model.import names"
        )
    if not classes:
        raise BadInput(f"data.import = {config.data.import_!r}: {UNKNOWN}; {COUNTED}")
    network = networks.network(design_of(config), form.shape, classes, device.workspace())
    if not config.by_torch:
        return network
    torch_start.require("model.backend = 'torch'")
    from mpitrain.models.torch.layers import TorchNetwork

    return TorchNetwork(network, config.run.matmul == "bf16", device.place())


def _imported(
    config: Config,
    form: SampleForm,
    classes: int,
    device: Cpu,
    code: Mapping[str, Code],
    given: Callable[..., object] | None,
) -> "TorchModel":
    """The model that `model.import` names, with the documents that a run folder keeps of it; as for `network_of`."""
    torch_start.require("model.import")
    from mpitrain.models.torch.module import TorchModel

    options, keywords = config.model, config.model.options or {}
    own = {key: each for key, each in code.items() if key.startswith("model.")}
    found = {key: each.function() for key, each in own.items()}
    build, shape = given or found["model.import"], form.shape
    seen = (shape[2], *shape[:2]) if form.pixels else tuple(shape)
    if not classes and not options.loss:
        wanted = COUNTED if form.target_dtype else "model.loss names a loss"
        raise BadInput(f"data.import = {config.data.import_!r}: {UNKNOWN}; {wanted}")
    merit = own["model.metric"].name.called if options.metric else ""
    if merit in ("loss", "error", "bits_per_byte"):
        raise BadInput(f"model.metric = {options.metric!r}: call it otherwise; {merit} is another figure of results")
    model = TorchModel(
        lambda seed: build(seen, classes, **copy.deepcopy(keywords)),
        shape,
        classes,
        name=f"model.import = {options.import_!r}",
        output=options.output or "softmax",
        loss=found.get("model.loss"),
        l2=options.l2 or 0.0,
        l2_biases=bool(options.l2_biases),
        seed=config.initial_seed,
        bf16=config.run.matmul == "bf16",
        place=device.place(),
        form=form,
        metric=found.get("model.metric"),
        merit=merit,
        dtype=config.training.dtype,
    )
    model.documents = _documents(options, model, seen, classes, own)
    return model


def _documents(
    options: ModelOptions, model: Model, seen: Sequence[int], classes: int, own: Mapping[str, Code]
) -> dict[str, str]:
    """What a run folder keeps of a model of the user's: the code, and a record of what was made by it."""
    import torch

    record = ModelRecord(
        options.import_ or "",
        options.loss or "",
        options.options or {},
        list(seen),
        classes,
        [(p.name, list(p.shape)) for p in model.layout.parameters],
        sums(own),
        str(torch.__version__),
        options.metric or "",
    )
    return {NAME: json.dumps(msgspec.to_builtins(record), indent=1) + "\n", **texts(own)}
