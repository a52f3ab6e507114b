"""The options of each algorithm, with the defaults that go with it. What they mean stands in the rule's own file."""

from typing import Any, get_args

from mpitrain.algorithms.elastic import Admm, Downpour, Eamsgd, EamsgdSync, Easgd, EasgdSync, Elastic, Pulled
from mpitrain.algorithms.hybrid import Hybrid
from mpitrain.algorithms.server import Adownpour, Asgd, Mdownpour, Mvadownpour
from mpitrain.algorithms.sparse_delta import SparseDelta
from mpitrain.algorithms.synchronous import Allreduce, Averaged, MovingAverage, Msgd, Sgd
from mpitrain.algorithms.table import Algorithm
from mpitrain.errors import BadInput

__all__ = [
    "ALGORITHMS",
    "Admm",
    "Adownpour",
    "Algorithm",
    "Allreduce",
    "AnyAlgorithm",
    "Asgd",
    "Averaged",
    "Downpour",
    "Eamsgd",
    "EamsgdSync",
    "Easgd",
    "EasgdSync",
    "Elastic",
    "Hybrid",
    "Mdownpour",
    "MovingAverage",
    "Msgd",
    "Mvadownpour",
    "Pulled",
    "Sgd",
    "SparseDelta",
    "chunks_together",
    "defaults_of",
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
)

ALGORITHMS: dict[str, type[Algorithm]] = {str(kind.__struct_config__.tag): kind for kind in get_args(AnyAlgorithm)}


def chunks_together(algorithm: Algorithm) -> int:
    """Chunks that are shuffled together when samples are read so (EASGD's prefetch); 0 when they are not."""
    return getattr(algorithm, "loaders", 1) if getattr(algorithm, "sampling", "") == "chunked" else 0


def name_of(algorithm: Algorithm) -> str:
    """The name that `algorithm.name` has in the configuration."""
    return str(type(algorithm).__struct_config__.tag)


def defaults_of(table: dict[str, Any]) -> dict[str, Any]:
    """The part of a configuration that an algorithm's name and preset imply. Raises BadInput for an unknown preset."""
    name = table.get("name", "asgd")
    kind = ALGORITHMS[name]
    preset = table.get("preset", "")
    if kind.presets and (not isinstance(preset, str) or preset not in kind.presets):
        raise BadInput(f"algorithm.preset = {preset!r}: unknown; known: {', '.join(filter(None, kind.presets))}")
    recipe = kind.recipes.get(preset, {})
    training = {**kind.training, **recipe.get("training", {})}
    return {**recipe, "training": training, "algorithm": {"name": name, **kind.presets.get(preset, {})}}
