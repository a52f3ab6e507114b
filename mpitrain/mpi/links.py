"""Measure latency and bandwidth of messages between two ranks."""

import time
from typing import Annotated

import msgspec
import numpy as np

from mpitrain.flat import Array
from mpitrain.keys import Section
from mpitrain.mpi.tags import Tag
from mpitrain.mpi.transport import Transport

LARGE, ROUNDS, SMALL_ROUNDS = 16 << 20, 4, 100  # bytes of a large message, and how often each is sent to and fro
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class Link(Section, frozen=True):
    """The cost of messages between two ranks: seconds for a message's first byte, and bytes a second."""

    latency: Seconds
    bandwidth: Annotated[float, msgspec.Meta(ge=1, le=1e15)]

    def __str__(self) -> str:
        return f"{self.latency * 1e6:,.0f} µs, {self.bandwidth / 1e9:.2f} GB/s"


USUAL = Link(2e-6, 1e10)


def pairs(leaders: list[int]) -> tuple[list[int] | None, list[int] | None]:
    """Two ranks of one node, and two of different nodes, given the first rank of each rank's node; None if none are."""
    within = next(([leader, rank] for rank, leader in enumerate(leaders) if leader != rank), None)
    return within, sorted({*leaders})[:2] if len({*leaders}) > 1 else None


def link(transport: Transport, pair: list[int] | None) -> Link | None:
    """Measure messages to and fro between a pair of ranks; None without a pair. All get the result. Collective."""
    if pair is None:
        return None
    figures = np.zeros(2)
    transport.barrier("the others")
    if transport.rank in pair:
        other = pair[1 - pair.index(transport.rank)]
        first = transport.rank == pair[0]
        figures[0] = _to_and_fro(transport, other, first, np.zeros(8, np.uint8), SMALL_ROUNDS)
        figures[1] = _to_and_fro(transport, other, first, np.zeros(LARGE, np.uint8), ROUNDS)
        figures *= first
    transport.sum(figures, "the measurement of a link")
    return Link(float(figures[0]), LARGE / float(figures[1]))


def _to_and_fro(transport: Transport, other: int, first: bool, buffer: Array, rounds: int) -> float:
    """Seconds that a message takes one way, the fastest of the rounds."""
    fastest = np.inf
    for _ in range(rounds):
        began = time.perf_counter()
        for sending in (first, not first):
            start = transport.send if sending else transport.start_receive
            transport.wait(start(other, Tag.VECTOR, buffer), "a message of a measurement", whom=[other])
        fastest = min(fastest, (time.perf_counter() - began) / 2)
    return fastest
