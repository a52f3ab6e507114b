"""Networks: layers over views of one flat vector."""

from mpitrain.models.model import Model
from mpitrain.models.network import Network
from mpitrain.models.presets import PRESETS, build
from mpitrain.models.warm import warm

__all__ = ["PRESETS", "Model", "Network", "build", "warm"]
