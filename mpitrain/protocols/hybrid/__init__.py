"""Hybrid parallelism (Krizhevsky 2014): convolutions on each rank's own examples, fully connected layers on each
rank's own units.

One minibatch: every rank runs the convolutional layers on its share. In rounds (sampling/rounds.py) their activations
are sent to all ranks, which run the fully connected layers forward and backward; a round's activations travel while the
one before is computed, its gradients while the next one is. Then the convolutional layers go backward once, and their
gradients are summed layer by layer while earlier layers are still computing.
"""

from typing import Any

import numpy as np

from mpitrain.algorithms.hybrid import Hybrid, HybridRule
from mpitrain.flat import Array, on_host
from mpitrain.models.model import Draws
from mpitrain.models.network import network_of_layers
from mpitrain.models.partition import Partition, SharedPart
from mpitrain.mpi.tags import Tag
from mpitrain.protocols.hybrid.connected import Connected
from mpitrain.protocols.hybrid.exchange import KINDS, OTHER, ActivationExchange, Synchroniser, Transfers
from mpitrain.sampling.batch import Batch
from mpitrain.sampling.queue import Work
from mpitrain.sampling.rng import stream
from mpitrain.training.context import Session
from mpitrain.training.gradients import clip, square
from mpitrain.training.loop import Together


def run(session: Session) -> None:
    """Train until all samples are served or a stop is asked for. Collective over all members, which are all ranks."""
    stepper = HybridStepper(session)
    session.say_exchange("collectives" if stepper.parts > 1 else "none")
    stepper.train()
    stepper.whole.gather()
    session.counters.totals |= stepper.counted()


class HybridStepper(Together):
    """Trains one rank's part of the network.

    After a step `wanted` says whether the master wants whole vectors, `stopping` whether some rank was told to stop;
    both are the same on all ranks.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.transport = session.device.transport(session.transport)
        options = self.options = Hybrid.of(session.config.algorithm)
        self.parts = len(session.members)
        network = network_of_layers(session.network, "split", "hybrid")
        partition = Partition(network, self.part, self.parts)
        self.whole = WholeVectors(session, partition)
        layout = partition.layout
        theta, self.gradient = self.whole.theta, np.zeros_like(self.whole.theta)
        self.views, self.gradients = layout.views(theta), layout.views(self.gradient)
        penalty = network.l2, network.l2 if network.l2_biases else 0.0
        self.update = HybridRule(
            options, layout, theta, self.whole.velocity, self.gradient, *penalty, session.device.fast
        )
        self.shared = SharedPart(network)
        self.transfers = Transfers(self.transport, options.overlap)
        self.exchange = ActivationExchange(self.transfers, self.shared.activations, network.workspace.another())
        self.sync = Synchroniser(self.transfers, self.gradient, self.shared.parts)
        self.connected = Connected(options, partition, self.exchange, self.views, self.gradients, self._update)
        network.workspace.progress = self._progress
        self._small = np.zeros(4)
        self._shared, self._waiting = slice(0, partition.shared), list[str]()  # for the gradient to be clipped
        self.wanted = False

    def attend(self) -> None:
        """Do what is due after a step, with whole vectors if the master wants them."""
        if self.wanted:
            self.whole.gather()
        self.session.monitor.turn(self, parameters=self.wanted)

    def step(self, work: Work) -> float:
        """Make one update; returns the minibatch's mean loss."""
        session = self.session
        wanted = session.transport.rank == session.members[0] and session.monitor.wants_parameters(work.count)
        share = work.share(self.part, self.parts)
        batch = session.learner.load(share)
        with session.learner.stopwatch.on("computing"):
            return self._compute(work, share, batch, wanted)

    def _compute(self, work: Work, share: Work, batch: Batch, wanted: bool) -> float:
        session = self.session
        transfer, targets = self.exchange.start_targets(batch.targets, work.count)
        rng = stream(session.learner.seed, "dropout", work.epoch, work.start)
        activations = self.shared.forward(self.views, batch.inputs, Draws(rng, (share.start - work.start, work.count)))
        self.connected.draw(rng, work.count, self.gradient.dtype)
        self.transfers.wait(transfer)
        loss, dy = self.connected.run(activations, targets)
        clipping = session.learner.clip_norm
        own = square(self.gradient[self._shared.stop :]) if clipping else 0.0
        self._small[:] = loss, session.stop.flag, wanted, own
        transfer = self.transfers.start(OTHER, self.transport.start_sum, self._small)
        self._batch = work.count
        self._backward(dy)
        session.learner.loader.stage()  # a GPU is still computing
        self.sync.finish(self._update_layer)
        self.transfers.wait(transfer)
        if clipping:
            whole = square(self.gradient[self._shared]) + float(self._small[3])
            clip(self.gradient, clipping, of_whole=whole)
            self.update(self._waiting, self.learning_rate, work.count, self.settings.bias_scale)
            self._waiting.clear()
        self.stopping, self.wanted = bool(self._small[1]), bool(self._small[2])
        session.state.index += 1
        return float(self._small[0]) / work.count

    def counted(self) -> dict[str, Any]:
        """Payload bytes by kind over all ranks; the share of communication time that computing hid, the ranks' mean."""
        transfers = self.transfers
        totals = np.array(
            [*(transfers.received[kind] for kind in KINDS), transfers.seconds, transfers.waited], np.float64
        )
        if self.parts > 1:
            self.transport.sum(totals, "the counts")
        seconds, waited = totals[-2:] / self.parts
        return {
            "bytes_by_kind": {kind: int(count) for kind, count in zip(KINDS, totals[:-2], strict=True)},
            "communication_seconds": float(seconds),
            "communication_hidden": float(1 - waited / seconds) if seconds else None,
        }

    def _backward(self, dy: Array) -> None:
        if len(dy):
            self.shared.backward(self.views, self.gradients, dy, self._ready)
            return
        for part in reversed(self.shared.parts):  # fewer examples than ranks: this one adds nothing
            self.gradient[part] = 0
            self._ready(part)

    def _ready(self, part: slice) -> None:
        if self.parts == 1:
            self._update_layer(part)
        else:
            self.sync.start(part)
            self._progress()

    def _progress(self) -> None:
        self.transfers.progress()
        self.sync.advance(self._update_layer)

    def _update_layer(self, part: slice) -> None:
        self._update(self.shared.names[part.start], self._batch)

    def _update(self, names: list[str], batch: int) -> None:
        if self.session.learner.clip_norm:
            self._waiting += names
        else:
            self.update(names, self.learning_rate, batch, self.settings.bias_scale)


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
