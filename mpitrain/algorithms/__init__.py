"""The options of each algorithm and their defaults. Their equations are in mpitrain/rules."""

from typing import get_args

from mpitrain.algorithms.admm import Admm
from mpitrain.algorithms.block_momentum import BlockMomentum
from mpitrain.algorithms.centred import Elastic
from mpitrain.algorithms.downpour import Adownpour, Downpour, Mdownpour, Mvadownpour
from mpitrain.algorithms.elastic import AttractingCentre, Eamsgd, EamsgdSync, Easgd, EasgdSync
from mpitrain.algorithms.hybrid import Hybrid
from mpitrain.algorithms.roles import MasterRule, WorkerRule
from mpitrain.algorithms.server import Asgd, Served
from mpitrain.algorithms.sparse_delta import SparseDelta
from mpitrain.algorithms.synchronous import Allreduce, Averaged, MovingAverage, Msgd, SgdAlgorithm
from mpitrain.algorithms.table import Algorithm
from mpitrain.errors import BadInput
from mpitrain.files import Record
from mpitrain.optimizers import OPTIMIZERS

Sequential = SgdAlgorithm | Msgd | Averaged | MovingAverage
Collective = Allreduce | Hybrid | EasgdSync | EamsgdSync | SparseDelta | BlockMomentum
WithCentre = Asgd | Easgd | Eamsgd | Downpour | Admm | Mdownpour | Adownpour | Mvadownpour
AnyAlgorithm = Sequential | Collective | WithCentre

ALGORITHMS: dict[str, type[Algorithm]] = {str(kind.__struct_config__.tag): kind for kind in get_args(AnyAlgorithm)}


def name_of(algorithm: Algorithm) -> str:
    """The value of `algorithm.name`."""
    return str(type(algorithm).__struct_config__.tag)


def maker_of(algorithm: Algorithm) -> str:
    """The names of the algorithm and of the chosen optimizer, which a resume of a rank's own vectors has to match."""
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
