"""Pre-training of the initial weights: rank 0 computes them before any algorithm starts, and all ranks receive them.

Each method is a module with `fits` and `steps`.
"""

from types import ModuleType

from mpitrain.config import Pretraining
from mpitrain.errors import BadInput
from mpitrain.models.network import Network
from mpitrain.pretraining import contrastive_divergence, layerwise

METHODS: dict[str, ModuleType] = {"layerwise": layerwise, "contrastive-divergence": contrastive_divergence}


def require_fit(options: Pretraining, network: Network) -> None:
    """Raise BadInput if the method cannot pre-train the network."""
    reason = METHODS[options.method].fits(network) if options.method != "none" else ""
    if reason:
        raise BadInput(f"pretraining.method = {options.method!r}: the network {reason}")
