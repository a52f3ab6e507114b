"""What messages cost: a latency and a bandwidth, and random delays for tests of what may come in which order."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Network:
    """Seconds of `latency`, bytes a second of `bandwidth`; `jitter` is the mean of an exponentially distributed delay
    that every message has besides, drawn from `seed`."""

    latency: float = 2e-6
    bandwidth: float = 1e10
    jitter: float = 0.0
    seed: int = 0


class Delays:
    """The seconds of each message, in the order in which they are sent."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._random = np.random.Generator(np.random.Philox(network.seed))

    def of(self, nbytes: int) -> float:
        """Of a message of so many bytes."""
        network = self._network
        late = float(self._random.exponential(network.jitter)) if network.jitter else 0.0
        return network.latency + nbytes / network.bandwidth + late
