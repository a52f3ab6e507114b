"""The options of each algorithm, with the defaults that go with it. What they mean stands in the rule's own file."""

from typing import Any, get_args

from mpitrain.algorithms.admm import Admm
from mpitrain.algorithms.block_momentum import BlockMomentum
from mpitrain.algorithms.centred import Elastic
from mpitrain.algorithms.downpour import Adownpour, Downpour, Mdownpour, Mvadownpour
from mpitrain.algorithms.elastic import Eamsgd, EamsgdSync, Easgd, EasgdSync, Pulled
from mpitrain.algorithms.hybrid import Hybrid
from mpitrain.algorithms.roles import MasterRule, WorkerRule
from mpitrain.algorithms.server import Asgd, Served
from mpitrain.algorithms.sparse_delta import SparseDelta
from mpitrain.algorithms.synchronous import Allreduce, Averaged, MovingAverage, Msgd, Sgd
from mpitrain.algorithms.table import Algorithm
from mpitrain.errors import BadInput
from mpitrain.optimizers import OPTIMIZERS

__all__ = [
    "ALGORITHMS",
    "Admm",
    "Adownpour",
    "Algorithm",
    "Allreduce",
    "AnyAlgorithm",
    "Asgd",
    "Averaged",
    "BlockMomentum",
    "Downpour",
    "Eamsgd",
    "EamsgdSync",
    "Easgd",
    "EasgdSync",
    "Elastic",
    "Hybrid",
    "MasterRule",
    "Mdownpour",
    "MovingAverage",
    "Msgd",
    "Mvadownpour",
    "Pulled",
    "Served",
    "Sgd",
    "SparseDelta",
    "WorkerRule",
    "defaults_of",
    "maker_of",
    "name_of",
]

AnyAlgorithm = (
    Sgd
    | Msgd
    | Averaged
    | MovingAverage
    | Allreduce
    | Asgd
    | Hybrid
    | Easgd
    | Eamsgd
    | EasgdSync
    | EamsgdSync
    | Downpour
    | Admm
    | Mdownpour
    | Adownpour
    | Mvadownpour
    | SparseDelta
    | BlockMomentum
)

ALGORITHMS: dict[str, type[Algorithm]] = {str(kind.__struct_config__.tag): kind for kind in get_args(AnyAlgorithm)}


def name_of(algorithm: Algorithm) -> str:
    """The name that `algorithm.name` has in the configuration."""
    return str(type(algorithm).__struct_config__.tag)


def maker_of(algorithm: Algorithm) -> str:
    """The names of the algorithm and of its chosen optimizer; only these can use the vectors that a rank has kept."""
    chosen = str(algorithm.chosen.__struct_config__.tag) if algorithm.chosen else ""
    return f"{name_of(algorithm)} {chosen}".rstrip()


def defaults_of(table: dict[str, Any]) -> dict[str, Any]:
    """The part of a configuration that an algorithm's name, preset and optimizer imply.

    Raises BadInput for an unknown preset.
    """
    name = table.get("name", "asgd")
    kind = ALGORITHMS[name]
    preset = table.get("preset", "")
    if kind.presets and (not isinstance(preset, str) or preset not in kind.presets):
        raise BadInput(f"algorithm.preset = {preset!r}: unknown; known: {', '.join(filter(None, kind.presets))}")
    recipe = kind.recipes.get(preset, {})
    chosen = table.get("optimizer", kind.presets.get(preset, {}).get("optimizer"))
    optimizer = OPTIMIZERS[chosen["name"]].training if chosen else {}
    training = {**kind.training, **optimizer, **recipe.get("training", {})}
    return {**recipe, "training": training, "algorithm": {"name": name, **kind.presets.get(preset, {})}}
