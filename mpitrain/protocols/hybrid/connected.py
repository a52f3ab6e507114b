"""The rounds of a minibatch through the fully connected layers; this rank has a share of each layer's units."""

from collections.abc import Callable
from functools import lru_cache
from itertools import zip_longest
from typing import Any

import numpy as np

from mpitrain.algorithms.hybrid import Hybrid
from mpitrain.flat import Array, share
from mpitrain.models.layer import Views
from mpitrain.models.layers.dropout import DropoutShare
from mpitrain.models.partition import Partition, SplitStage
from mpitrain.protocols.hybrid.exchange import ActivationExchange, Transfer
from mpitrain.sampling.rounds import FullyConnectedRound, rounds

#: Called with the names of parameters whose gradients are final, and the number of examples they are means over.
Update = Callable[[list[str], int], None]


class Connected:
    """Forward and backward of the fully connected layers, with this rank's parameters and gradients as named views."""

    def __init__(
        self,
        options: Hybrid,
        partition: Partition,
        exchange: ActivationExchange,
        views: Views,
        gradients: Views,
        update: Update,
    ) -> None:
        self._options, self._exchange, self._transfers = options, exchange, exchange.transfers
        self._views, self._gradients, self._update = views, gradients, update
        self._part, self._parts = partition.part, partition.parts
        self._workspace = partition.network.workspace.another()
        self._stages = [
            SplitStage(stage, share(stage.layer.units, self._part, self._parts), self._workspace)
            for stage in partition.stages
        ]
        self._loss = partition.network.loss
        self._masks = {
            s: DropoutShare(s.stage.dropout, s.own, s.units, self._workspace) for s in self._stages if s.stage.dropout
        }
        self._sub = options.fc_batch == "sub"

    def draw(self, rng: np.random.Generator, count: int, dtype: np.dtype) -> None:
        """Draw dropout for a minibatch of `count` examples."""
        for mask in self._masks.values():
            mask.draw(rng, count, dtype)

    def run(self, activations: Array, targets: Array) -> tuple[float, Array]:
        """All rounds of a minibatch with `targets` [count]; `activations` [own examples, width] are this rank's share.

        Returns this rank's term of the summed loss, and the gradient of the mean loss by its activations. The weights
        are updated in every round with fc_batch = "sub", else in the last.
        """
        order = order_of(self._options, self._parts, len(targets))
        first = share(len(targets), self._part, self._parts).start
        own = self._workspace.array("activations.gradient", activations.shape, activations.dtype)
        returning: list[Transfer | None] = []
        loss, coming = 0.0, self._exchange.start_activations(order[0], activations, first)
        for each in order:
            transfer, x = coming
            self._transfers.wait(transfer)
            if each is not order[-1]:
                coming = self._exchange.start_activations(order[each.number + 1], activations, first)
            if each.number > 1:  # that round's gradients leave the buffer that this one needs
                self._transfers.wait(returning[each.number - 2])
            loss += self._forward(each, x, targets)
            returning.append(self._backward(each, own, first, len(targets), each is order[-1]))
        for gradients in returning:
            self._transfers.wait(gradients)
        for each in order if self._sub else ():  # from gradients of a round's mean loss to those of the minibatch's
            rows = self._exchange.rows_of(each, own, first)
            np.multiply(rows, each.examples / len(targets), out=rows)
        return loss, own

    def _forward(self, each: FullyConnectedRound, x: Array, targets: Array) -> float:
        """Compute the outputs of x [n, width] and their gradient `_dy`; returns this rank's term of the summed loss."""
        x, ranges = x.T[self._stages[0].inputs], [slice(piece.start, piece.stop) for piece in each.pieces]
        for stage, following in zip_longest(self._stages, self._stages[1:]):
            gathers = following is not None and not following.restricted
            rows = stage.units if gathers else stage.count
            units = self._array(stage, "units", (rows, each.examples), x.dtype)
            mine = units[stage.own] if gathers else units
            keep = self._masks[stage].of(ranges) if stage in self._masks else None
            stage.forward(self._views, x, mine, keep, self._transfers.push)
            if gathers:
                self._exchange.gather_units(units)
            x = units
        self._dy = x
        examples = self._workspace.array("targets", (each.examples,), targets.dtype)
        np.concatenate([targets[part] for part in ranges], out=examples)
        scale = 1 / (each.examples if self._sub else len(targets))
        own = self._stages[-1].own
        return self._loss.split_loss_and_gradient(x, examples, scale, own, self._exchange.reduce, self._workspace)

    def _backward(self, each: FullyConnectedRound, own: Array, first: int, count: int, last: bool) -> Transfer | None:
        """Gradients and updates of a round; returns the transfer of the activations' gradients into `own`.

        A layer's input gradient is computed first, so that it travels while the weight gradient is.
        """
        dy, batch = self._dy, each.examples if self._sub else count
        for i in reversed(range(len(self._stages))):
            stage, n = self._stages[i], each.examples
            if i and stage.restricted:
                before, transfer = self._stages[i - 1], None
                mine = self._array(before, "gradient", (before.count, n), dy.dtype)
                stage.input_gradient(self._views, dy, mine, self._transfers.push)
            elif i:
                terms = self._array(stage, "terms", (stage.stage.inputs, n), dy.dtype)
                stage.input_gradient(self._views, dy, terms, self._transfers.push)
                before = self._stages[i - 1]
                mine = self._array(before, "gradient", (before.count, n), dy.dtype) if self._parts > 1 else terms
                transfer = self._exchange.start_unit_gradients(terms, mine)
            else:
                terms = self._exchange.terms(each, dy.dtype)
                if stage.restricted:
                    terms.fill(0)
                stage.input_gradient(self._views, dy, terms.T[stage.inputs], self._transfers.push)
                transfer = self._exchange.start_gradients(each, terms, own, first)
            stage.weight_gradient(self._gradients, dy, not self._sub and each.number > 0, self._transfers.push)
            if self._sub or last:
                self._update(stage.names, batch)
            if i:
                self._transfers.wait(transfer)
                before.backward_activation(self._views, mine)
                dy = mine
        return transfer

    def _array(self, stage: SplitStage, part: str, shape: tuple[int, ...], dtype: Any) -> Array:
        return self._workspace.array(f"{stage.stage.layer.name}.{part}", shape, dtype)


@lru_cache(maxsize=8)
def order_of(options: Hybrid, parts: int, count: int) -> tuple[FullyConnectedRound, ...]:
    """The rounds of a minibatch of `count` examples."""
    return tuple(rounds(options.scheme, parts, count, options.group))
