"""Whole vectors on the master, assembled from every rank's part: for evaluation, checkpoints and the hash."""

import numpy as np

from mpitrain.flat import Array, on_host
from mpitrain.models.partition import Partition
from mpitrain.mpi.tags import Tag
from mpitrain.training.context import Session


class WholeVectors:
    """Cuts this rank's part out of the state's whole vectors, and assembles the parts again on the master.

    The other ranks free their whole vectors. `theta` and `velocity` are those of the rank's part.
    """

    def __init__(self, session: Session, partition: Partition) -> None:
        self._session, self._partition = session, partition
        self._master = session.transport.rank == session.members[0]
        state = session.state
        to_device = session.device.to_device
        self.theta = to_device(partition.take(state.theta))
        velocity = state.beside.get("velocity")
        self._has_velocity = velocity is not None  # a momentum of 0 needs none
        self.velocity = np.zeros_like(self.theta) if velocity is None else to_device(partition.take(velocity))
        if self._master:
            others = [Partition(partition.network, part, partition.parts) for part in range(1, partition.parts)]
            self._others = [(other, other.layout.size - other.shared) for other in others]
            self._room = np.empty(max((size for _, size in self._others), default=0), self.theta.dtype)
        else:
            state.theta, state.beside = state.theta[:0].copy(), {}

    def gather(self) -> None:
        """Bring the master's state up to date. Collective."""
        state = self._session.state
        self._gather(self.theta, state.theta)
        if self._has_velocity:
            self._gather(self.velocity, state.beside.get("velocity"))

    def _gather(self, own: Array, whole: Array | None) -> None:
        transport, partition, own = self._session.transport, self._partition, on_host(own)
        if not self._master:
            transfer = transport.send(self._session.members[0], Tag.WEIGHTS, own[partition.shared :])
            transport.wait(transfer, "the master to take the weights")
            return
        assert whole is not None
        whole[: partition.shared] = own[: partition.shared]
        partition.put(own[partition.shared :], whole)
        for rank, (other, size) in zip(self._session.members[1:], self._others, strict=True):
            transport.receive_into(rank, Tag.WEIGHTS, self._room[:size], f"the weights of rank {rank}")
            other.put(self._room[:size], whole)
