"""Sparse deltas of the changes by a user's own steps (`sparse-delta`)."""

import numpy as np

from mpitrain.algorithms import SparseDelta
from mpitrain.api.loop.method import Method, Told
from mpitrain.api.loop.past import Apply, Past
from mpitrain.checkpoint.state import Numbers, Vectors, checked
from mpitrain.compression.compressor import Thresholds
from mpitrain.compression.thresholds import restore_weights, share_residuals
from mpitrain.errors import TrainingFailed, named
from mpitrain.flat import Array
from mpitrain.protocols.peers import compile_loops
from mpitrain.protocols.peers.deltas import Deltas
from mpitrain.protocols.peers.leftovers import PeerPast
from mpitrain.protocols.peers.replica import Replica, odd_ones


class Increments(Method):
    """All ranks hold the same replica Θ, of integer weights (Strom 2015, with increments in place of gradients).

    A batch starts at Θ. The change by the user's steps goes into the residual r, and the elements s of r that exceed
    the threshold go to all ranks: r ← r + x − Θ, then r ← r − s and, on every rank, Θ ← Θ + s. `_base` is Θ where the
    batch started: messages are also applied to Θ while the user's code runs.
    """

    def begin(self) -> None:
        self._options = options = SparseDelta.of(self.algorithm)
        self.in_step = options.synchronous
        self._theta = self.flat.vector()
        compile_loops(self.transport, options, self._theta.dtype)
        self._counts = options.beside(self._theta)["counts"]
        self._numbers: Numbers = {"threshold": options.threshold}
        # The compressor's residual is of what is subtracted, as gradients are: it holds −r.
        settings = options.bits, options.codec, options.target_density, options.clip
        self._compressor = Thresholds(np.zeros_like(self._theta), self._numbers, *settings)
        self.flat.bind(self._theta.copy())
        self._base = np.empty_like(self._theta)
        self._start_from_replica()
        self.attendance.busy = True

    def _start_from_replica(self) -> None:
        options, transport = self._options, self.transport
        replica = Replica(self._theta, self._counts, transport.members, transport.rank, self._compressor.wire)
        at_once = not options.synchronous
        self._deltas = Deltas(transport, replica, options.window, options.patience, at_once)
        self.attendance.progress = self._deltas.receive
        self._return()

    def _return(self) -> None:
        np.copyto(self.flat.x, self._theta)
        np.copyto(self._base, self._theta)

    def after(self, t: int) -> None:
        if self.in_step:
            self.roll.call(t, "the other ranks' messages", Told(unfit=not self.flat.finite))
        else:
            self.require_finite()
        # A rank that waits in ranks.mean or ranks.save takes no messages, so nobody waits for its window.
        emit = self.in_step or not self._deltas.outbox.awaited()
        self._compressor.begin(1.0, 1.0, emit)
        entries = self._compressor.end(np.subtract(self._base, self.flat.x, out=self._base))
        if emit:
            self._deltas.await_window()
            self._deltas.send(entries, self._compressor.step, self._compressor.threshold)
        if self.in_step:
            self._deltas.take_round()
        else:
            self._deltas.receive()
        self._return()

    def finish(self, t: int) -> None:
        if self.in_step:
            self.roll.call(t, "the end of the loop", Told(leaving=True))
        self.settle()
        self.leave(t)
        self.attendance.busy = False

    def model(self) -> Array:
        return self._theta.copy()

    def settle(self) -> None:
        what = "the other ranks' last messages"
        self._deltas.until(self._deltas.all_taken, what)
        self._deltas.settle(what)
        self._deltas.replica.check()
        hashes = self.transport.gather_texts(self._deltas.replica.hash(), what)
        if odd := odd_ones(hashes):
            raise TrainingFailed(f"the replica of {named(odd)} differs from the others")
        self._return()

    def keep(self) -> tuple[Vectors, Numbers]:
        # Not Θ: from 1/4 on, a float32 does not tell two counts that follow one another apart.
        return {"counts": self._counts, "residual": self._compressor.residual}, dict(self._numbers)

    def take_up(self, past: Past) -> Apply:
        counts = past.vector("counts", self._counts)
        numbers, residual = checked(past.numbers.method, PeerPast), np.empty_like(self._base)
        if past.same:
            residual[:] = past.vector("residual", residual)
        else:
            residuals = [past.vector("residual", residual, rank) for rank in range(past.ranks)]
            share_residuals(residuals, self.ranks, past.rank, residual)

        def apply() -> None:
            self.settle()
            np.copyto(self._counts, counts)
            restore_weights(self._counts, self._theta)
            np.copyto(self._compressor.residual, residual)
            if self._options.target_density:  # else the threshold is fixed
                self._numbers["threshold"] = numbers.threshold
            self._start_from_replica()

        return apply
