"""Pre-training of the initial weights: rank 0 computes them before any algorithm starts, and all ranks receive them.

Each method is a module with `fits` and `steps`.
"""

from types import ModuleType

from mpitrain.config import Pretraining
from mpitrain.errors import BadInput
from mpitrain.models.model import Model
from mpitrain.models.network import network_of_layers
from mpitrain.training.pretraining import contrastive_divergence, layerwise

METHODS: dict[str, ModuleType] = {"layerwise": layerwise, "contrastive-divergence": contrastive_divergence}


def require_fit(options: Pretraining, network: Model) -> None:
    """Raise BadInput if the method cannot pre-train the network."""
    if options.method == "none":
        return
    layered = network_of_layers(network, "layers", f"pretraining.method = {options.method!r}")
    if reason := METHODS[options.method].fits(layered):
        raise BadInput(f"pretraining.method = {options.method!r}: the network {reason}")
