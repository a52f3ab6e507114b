"""An α–β model of an iteration: what the computing takes, and what of the messages' time it cannot hide.

A collective on K ranks takes α·log2 K and β seconds for each byte that a rank receives.
"""

from dataclasses import dataclass
from math import log2

import numpy as np

from mpitrain.mpi import Transport


@dataclass(frozen=True)
class Network:
    """α: seconds before the first byte; β: seconds a byte."""

    alpha: float
    beta: float

    def seconds(self, nbytes: float, ranks: int, messages: float = 1) -> float:
        """One kind of message in an iteration: `messages` collectives that bring a rank `nbytes` in all."""
        return messages * self.alpha * max(log2(ranks), 0) + nbytes * self.beta


@dataclass(frozen=True)
class Computing:
    """Seconds of an iteration's phases without messages; `rest` is samples, dropout and the last updates."""

    forward: float
    connected: float
    backward: float
    rest: float


def measured_network(transport: Transport, repeats: int = 20) -> Network:
    """From the sum of 8 numbers and a gather of 4 MB."""
    small, large = np.zeros(8), np.zeros(1 << 22, np.uint8)
    counts = [large.size // transport.size] * transport.size
    part = large[: counts[0]].copy()

    def timed(count: int, start) -> float:
        transport.barrier("the measurement")
        began = transport.clock()
        for _ in range(count):
            transport.wait(start(), "the measurement", 1.0)
        return (transport.clock() - began) / count

    gather = lambda: transport.start_gather(part, large[: sum(counts)], counts)  # noqa: E731
    timed(2, gather)
    alpha = timed(repeats, lambda: transport.start_sum(small)) / max(log2(transport.size), 1)
    received = sum(counts) - counts[0]
    found = np.array([alpha, max(timed(5, gather) - alpha, 0) / received])
    transport.sum(found, "the measurement")
    return Network(*(found / transport.size).tolist())


def hybrid(scheme: str, ranks: int, computing: Computing, received: dict[str, int], net: Network) -> float:
    """Predicted seconds of an iteration that receives so many bytes of each kind a rank.

    Exposed: the gathers of units and the small sums; the first round's activations; what the other rounds' activations
    exceed the connected layers' computing by, what gradients of units exceed a third of it by (the weights' gradient),
    the last round's activation gradients a third of a round's, the convolutions' gradients the backward computing.
    """
    rounds = 1 if scheme == "a" else ranks
    boundaries, layers = 2, 5
    activations = net.seconds(received["activations"], ranks, rounds) / rounds
    back = net.seconds(received["activation_gradients"], ranks, rounds) / rounds
    units = net.seconds(received["unit_activations"], ranks, rounds * boundaries)
    unit_gradients = net.seconds(received["unit_gradients"], ranks, rounds * boundaries)
    small = net.seconds(received["other"], ranks, 2 * rounds)
    convolutions = net.seconds(received["conv_gradients"], ranks, 2 * layers)
    a_round = computing.connected / rounds
    exposed = units + small + activations
    exposed += (rounds - 1) * max(activations + back - a_round, 0)
    exposed += max(unit_gradients - computing.connected / 3, 0)
    exposed += max(back - a_round / 3, 0)
    exposed += max(convolutions - computing.backward, 0)
    return computing.forward + computing.connected + computing.backward + computing.rest + exposed


def allreduce(ranks: int, seconds: float, parameters: int, net: Network) -> float:
    """Predicted seconds of data-parallel training that computes for `seconds`, two thirds of it backward."""
    volume = 2 * (ranks - 1) / ranks * 4 * parameters
    return seconds + max(net.seconds(volume, ranks, volume / 4e6) - 2 / 3 * seconds, 0)
