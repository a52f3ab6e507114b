"""The algorithms: one file a family, with its equations, its options and the arithmetic of its roles; no messages."""

from typing import TYPE_CHECKING, Union

from mpitrain.algorithms.interface import Algorithm
from mpitrain.algorithms.optimizers import OPTIMIZERS
from mpitrain.algorithms.roles import WorkerRule as WorkerRule
from mpitrain.algorithms.sparse_delta import SparseDelta as SparseDelta
from mpitrain.errors import BadInput
from mpitrain.files import Record
from mpitrain.keys import tagged

#: Options by the value of `algorithm.name`, in the order of their modules.
ALGORITHMS = tagged(
    Algorithm,
    "mpitrain.algorithms",
    *("synchronous", "hybrid", "sparse_delta", "block_momentum", "server", "elastic", "downpour", "admm"),
)

if TYPE_CHECKING:
    AnyAlgorithm = Algorithm
else:
    AnyAlgorithm = Union[tuple(ALGORITHMS.values())]  # noqa: UP007 (of a list, for msgspec)


def name_of(algorithm: Algorithm) -> str:
    """The value of `algorithm.name`."""
    return str(type(algorithm).__struct_config__.tag)


def maker_of(algorithm: Algorithm) -> str:
    """The names of the algorithm and of its optimizer: a resume takes up a rank's own vectors only if they match."""
    chosen = str(algorithm.chosen.__struct_config__.tag) if algorithm.chosen else ""
    return f"{name_of(algorithm)} {chosen}".rstrip()


def defaults_of(table: Record) -> Record:
    """The defaults of a configuration that follow from the algorithm's name, preset and optimizer.

    Raises BadInput for an unknown preset.
    """
    name, preset = str(table.get("name", "asgd")), table.get("preset", "")
    kind = ALGORITHMS[name]
    if kind.presets and (not isinstance(preset, str) or preset not in kind.presets):
        raise BadInput(f"algorithm.preset = {preset!r}: unknown; known: {', '.join(filter(None, kind.presets))}")
    options, recipe = kind.presets.get(str(preset), {}), kind.recipes.get(str(preset), {})
    chosen = table.get("optimizer", options.get("optimizer"))
    optimizer = OPTIMIZERS[chosen["name"]].training if isinstance(chosen, dict) else {}
    training = {**kind.training, **optimizer, **recipe.get("training", {})}
    return {**recipe, "training": training, "algorithm": {"name": name, **options}}
