"""Which data and which network a configuration names; the same for a training and for what is done with its result."""

from pathlib import Path
from typing import Any

from mpitrain.config import Config
from mpitrain.data.augmentation import Augmentation
from mpitrain.data.corpus import Corpus, open_corpus, parts
from mpitrain.data.digits import embedded
from mpitrain.models import Network, build
from mpitrain.models.workspace import Workspace
from mpitrain.origin import Origin


def data_path(config: Config) -> Path:
    """The shard folder."""
    return Path(config.data.path) if config.data.path else embedded()


def reading(config: Config) -> dict[str, Any]:
    """How `open_corpus` reads the training part."""
    data, training = config.data, config.training
    return {
        "context": data.context,
        "dtype": training.dtype,
        "memory_limit": int(data.memory_limit_gb * 1e9),
        "augmentation": Augmentation(data.crop, data.flip, data.colour_shift, training.seed),
        "normalise": data.normalise,
    }


def held_out(path: Path) -> list[str]:
    """The parts that are not trained on, in the order in which they are evaluated: tests first."""
    return sorted((part for part in parts(path) if part != "train"), key=lambda part: (part[:4] != "test", part))


def open_held_out(config: Config, path: Path, part: str, origin: Origin, **changes: Any) -> Corpus:
    """A part as the network saw its training part: window, centre crop, the training part's own mean and deviation.

    `changes` replace arguments of `open_corpus`. Raises BadInput naming the folder that does not fit the network.
    """
    origin.require(path, part)
    how = reading(config) | {"augmentation": Augmentation(config.data.crop), "statistics": origin.statistics}
    return open_corpus(path, part, **how | changes)


def seen_shape(config: Config, origin: Origin) -> tuple[int, ...]:
    """The shape of a sample as the network sees it: [window, dims], or [h, w, c] after the crop."""
    if origin.kind == "frames":
        context = config.data.context
        return (sum((context[0], context[-1])) + 1 if context else 1, *origin.shape)
    return Augmentation(config.data.crop).shape(tuple(origin.shape))


def network_of(config: Config, shape: tuple[int, ...], classes: int, workspace: Workspace | None = None) -> Network:
    """The network for inputs of this shape, on the CPU unless `workspace` is another device's.

    Raises BadInput naming the key that does not fit them.
    """
    model = config.model
    return build(
        model.preset,
        shape,
        classes,
        width=model.width,
        output=model.output,
        l2=model.l2,
        dropout=model.dropout,
        hidden_layers=model.hidden_layers,
        workspace=workspace,
    )
