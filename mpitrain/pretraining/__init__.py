"""What is done to the initial weights before a training: by the first rank, whatever the algorithm, then everybody's.

Each method is a module with `fits` and `steps`.
"""

from types import ModuleType

from mpitrain.config import Pretraining
from mpitrain.errors import BadInput
from mpitrain.models.network import Network
from mpitrain.pretraining import contrastive_divergence, layerwise

METHODS: dict[str, ModuleType] = {"layerwise": layerwise, "contrastive-divergence": contrastive_divergence}


def require_fit(options: Pretraining, network: Network) -> None:
    """Raise BadInput when the method cannot pre-train the network."""
    reason = METHODS[options.method].fits(network) if options.method != "none" else ""
    if reason:
        raise BadInput(f"pretraining.method = {options.method!r}: the network {reason}")
