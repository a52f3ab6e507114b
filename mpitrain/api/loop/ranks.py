"""The ranks of a training whose loop is the user's own."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import torch

from mpitrain.api.loop.loader import Dealt, fingerprint, shared
from mpitrain.api.loop.method import Attendance, Method
from mpitrain.api.loop.module import FlatModule
from mpitrain.api.loop.past import Clock
from mpitrain.api.loop.record import RunRecord
from mpitrain.api.loop.saves import Saves
from mpitrain.errors import BadInput, Overdue, TrainingFailed, WireError, naming, say
from mpitrain.mpi import Transport, abort, end_as_commands_do, traceback_of_rank
from mpitrain.mpi.agreement import agreed, ending_together

GRACE = 5.0  # most seconds that the others' waits last longer, so that a rank that waits in a user's call can name it
TOGETHER = 5.0  # seconds within which ranks exit together

Start = Callable[[Transport, Attendance], tuple[FlatModule, Method, RunRecord]]


class Ranks:
    """What `mpitrain.distribute` returns: the ranks that train, which share batches, numbers and models.

    Within its context, `rank` is the number of this rank among `size`; `weight` is 0 for a batch that only keeps this
    rank in step with ranks that still have samples (its gradient is taken as zero), else 1.
    """

    rank: int
    size: int
    _open: "Ranks | None" = None

    def __init__(self, start: Start, seed: int, deadline: float) -> None:
        self._start, self._seed, self._deadline = start, seed, deadline
        self.weight = 1
        self._t = self._epochs = 0  # batches that are done, epochs that have begun
        self._handed = 0  # batches handed out of this epoch; after `load`, of the epoch in which the save was made
        self._changes = 0  # of the parameters when the last epoch ended
        self._share: object = None  # identifies the loop over the current epoch; None between epochs
        self._shows = False
        self._current: Dealt | None = None
        self._batch = ExitStack()  # undoes what is done to the module for the current batch
        self._undo = ExitStack()  # undoes what the block does to the module, the optimizer and the run folder

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which prints and writes."""
        return self.rank == 0

    def __enter__(self) -> Self:
        if Ranks._open is not None:
            raise BadInput("distribute: another block is open; one model is trained at a time")
        end_as_commands_do()  # before the first wait, since a rank may not arrive
        Ranks._open, self._transport = self, Transport(deadline=self._deadline, deadline_key="deadline")
        self.rank, self.size = self._transport.rank, self._transport.size
        try:
            self._transport.grace = min(self._deadline / 4, GRACE)
            self._exits = self._transport.duplicate()
            self._attendance = Attendance(self._transport)
            self._attendance.__enter__()
            self._flat, self._method, self._record = self._start(self._transport, self._attendance)
            self._flat.note()
            self._undo.callback(self._flat.release)
            self._undo.callback(self._method.release)
            self._undo.callback(self._batch.close)
            self._undo.enter_context(self._record)
            self._undo.callback(self._flat.optimizer.register_step_pre_hook(self._before_step).remove)
            self._calls = self._transport.duplicate()  # its messages cannot meet others: ranks may make different calls
            self._calls.grace = 0.0  # a rank that is alone in a call gives up first, and names the call
            self._saves = Saves(self._transport, self._record.algorithm, self._flat, self._method, int(self._seed))
        except BaseException as error:
            self._fail(error)
            raise
        self._transport.watch()
        self._attendance.__exit__()
        return self

    def share(self, loader: Iterable[Any]) -> Iterator[Any]:
        """This rank's batches of one epoch of `loader`: each sample comes once over all ranks, and every rank has as
        many batches.

        A `DataLoader` over a map-style dataset is replaced by one with other batches: batch_size is that of each rank,
        and a shuffled order is drawn from the seed and the epoch. Of any other iterable, the ranks take one batch each
        in turn. Raises BadInput if the loop goes on after another `share` has begun: they cannot be nested.
        """
        self._require_own_parameters("ranks.share")
        epoch, handed = self._epochs, 0 if self._share else self._handed
        share = self._share = object()
        self._epochs, self._handed = epoch + 1, handed  # at once: the loop may be left early
        try:
            for dealt in shared(loader, self.rank, self.size, self._seed, epoch, handed):
                with self._attendance:
                    self._done()
                    self._flat.require_bound()
                    if self._method.apart:
                        self._flat.require_noted()
                    self._current, roll = dealt, self._method.roll
                    if self.size > 1:
                        roll.read = roll.read or fingerprint(dealt.read)
                    self._method.before(self._t, dealt)
                self.weight = int(dealt.samples > 0)
                self._handed += self._share is share
                if not self.weight:
                    self._batch.enter_context(self._flat.gradients_through(torch.zeros_like))
                yield dealt.batch
                if self._share is not share:
                    raise BadInput("ranks.share: another one began within this one's loop; take one after the other")
            with self._attendance:
                self._done()
        finally:
            if self._share is share:
                self._share, self._handed = None, 0
                self._batch.close()
                self._changes = self._flat.changes

    @property
    def epoch(self) -> int:
        """The number of epochs that are over, which is also the number of the current one, from 0: after a `load`,
        `for epoch in range(ranks.epoch, epochs)` goes on where the save was made."""
        return self._epochs - (self._share is not None)

    def save(self, path: str | Path) -> None:
        """Write all that this training needs to go on into the folder `path`, in place of an earlier save; the folder
        gets its name once it is whole. All ranks call this together: between epochs, or after `optimizer.step()`.

        It holds each rank's parameters, buffers, optimizer.state_dict() and random states (PyTorch's, NumPy's,
        Python's), the algorithm's state, and the place in the order of samples; a scheduler and a GradScaler are not
        saved. Raises BadInput naming what cannot be saved or written.
        """
        self._require_own_parameters("ranks.save")
        with self._attendance:
            self._done()
            self._saves.save(Path(path), Clock(self._t, self.epoch, self._handed, self._record.samples))

    def load(self, path: str | Path) -> None:
        """Go on from a save, with an equal module, optimizer and algorithm. All ranks call it together, outside of an
        epoch; the next `share` hands out what is left of the epoch in which the save was made.

        On as many ranks, training comes to the same bits as if it had not been interrupted, unless worker processes of
        the loader draw random numbers within that epoch. On another number of ranks, which needs a save made between
        epochs, all start from the algorithm's model, rank r with the optimizer's state of rank r modulo the number of
        ranks that saved. Raises BadInput naming the file and what does not fit; then all is as before.
        """
        self._require_own_parameters("ranks.load")
        with self._attendance:
            if self._share is not None:
                raise BadInput("ranks.load: within an epoch; load before its first batch")
            self._done()
            clock = self._saves.load(Path(path))
            self._flat.note()
            self._t, self._epochs, self._handed = clock.t, clock.epoch, clock.handed
            self._record.samples, self._record.before, self._record.own = clock.samples, clock.samples, 0

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Within this context gradients are only added up, and a later backward outside of it sums them over the ranks.
        Only `allreduce` sums gradients; with other algorithms, this context changes nothing."""
        self._method.accumulating = True
        try:
            yield
        finally:
            self._method.accumulating = False

    @contextmanager
    def model(self) -> Iterator[torch.nn.Module]:
        """Within this context the module has the parameters that the algorithm would keep: the centre, or the averaged
        model; with `allreduce`, its own. A rank may call this without the others."""
        with self._attendance:
            model = self._method.model()
        x, own = self._flat.x, self._flat.x.copy()
        np.copyto(x, model)
        shown, self._shows = self._shows, True
        try:
            yield self._flat.module
        finally:
            self._shows = shown
            np.copyto(x, own)

    def mean(self, value: float | torch.Tensor) -> float:
        """The mean of every rank's number. All ranks call it together."""
        told = np.array([number(value, "ranks.mean")])
        with self._attendance:
            self._calls.sum(told, "ranks.mean, which all ranks call together")
        return float(told[0] / self.size)

    def log(self, **values: float | torch.Tensor) -> None:
        """Record numbers, such as test_error=0.1, under the present number of samples, in the run folder's
        metrics.jsonl. Only rank 0's are kept. Raises BadInput naming a key that records have by themselves."""
        self._record.write(
            {name: number(value, f"ranks.log: {name}") for name, value in values.items()}, self._t, self._epochs
        )

    # ---- around the user's steps

    def _before_step(self, *_: object) -> None:
        if self._current is None:
            raise BadInput("optimizer.step: no batch of ranks.share is in hand: the ranks' models would drift apart")
        self._require_own_parameters("optimizer.step")  # else the step would be undone
        self._method.before_step()

    def _require_own_parameters(self, call: str) -> None:
        if Ranks._open is not self:
            raise BadInput(f"{call}: outside of its with block, where the ranks train")
        if self._shows:
            raise BadInput(f"{call}: within ranks.model(), where the module has other parameters than this rank's")

    def _done(self) -> None:
        """End the current batch, if there is one: the user is done with it."""
        self._batch.close()
        if self._current is not None:
            self._method.after(self._t)
            self._record.samples += self._current.together
            self._record.own += self._current.samples
            self._current, self._t = None, self._t + 1

    # ---- the end

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        try:
            self._attendance.__enter__()  # from now on the rank calls MPI itself
        except (Overdue, TrainingFailed, WireError) as met:  # by the thread that called MPI while the user's code ran
            error = met
        if isinstance(error, SystemExit) and self.size > 1:
            self._exit(error.code)
            return False
        if error is not None:
            self._fail(error)
            return False
        with self._undo:
            status = ending_together(self._transport, self._finish)
        Ranks._open = None
        if status:
            raise SystemExit(status)
        return False

    def _finish(self) -> int:
        self._say_if_changed()
        self._done()
        self._method.finish(self._t)
        np.copyto(self._flat.x, self._method.model())
        self._method.close()
        self._flat.average_statistics(self._transport)
        self._flat.share_buffers(self._transport)
        self._record.add_up()
        reason = "finished" if self._flat.finite else "diverged"
        agreed(self._transport, lambda: self._record.end(self._flat.x, self._epochs, reason), "the summary")
        if not self._flat.finite:  # the same on all ranks
            raise TrainingFailed(f"the parameters are not finite after {self._t} batches")
        return 0

    def _say_if_changed(self) -> None:
        """Say so if parameters were set after the last batch, where the algorithm keeps a model beside them."""
        changed = self._changes not in (0, self._flat.changes)
        if changed and self._method.apart and self._share is None and self.is_first:
            line = "parameters were set after the last batch, as by load_state_dict, and the block ends with"
            say(f"warning: {line} the algorithm's model all the same: set them after it")

    def _exit(self, code: object) -> None:
        """Let this rank end as its user wants, if all ranks exit; otherwise end the job, with the user's status."""
        Ranks._open = None
        self._undo.close()
        transport, exited = self._transport, self._exits.comm.Ibarrier()
        status = int(code is not None) if not isinstance(code, int) else code % 256
        end = transport.clock() + TOGETHER
        transport.until(lambda: bool(exited.Test()) or transport.clock() > end, "the other ranks' exit")
        if not exited.Test():
            say(f"rank {self.rank} called sys.exit({'' if code is None else repr(code)}), and not all ranks did")
            abort(status or 1)
            return
        transport.deadline, transport.grace = TOGETHER, 0.0
        try:
            with suppress(BadInput):  # gradients that are in no step
                self._method.settle()
            self._method.close()
            transport.leave()
            transport.runtime.finalize_within(self._deadline)
        except (Overdue, TrainingFailed, WireError):  # some exited amid their messages, as by a signal
            abort(status)

    def _fail(self, error: BaseException) -> None:
        """End the job because of an error on this rank. Returns if the caller is to see the error."""
        Ranks._open = None
        self._undo.close()
        if isinstance(error, BadInput):
            error.agreed |= self.size == 1
        passed_on = isinstance(error, BadInput) and error.agreed  # to each rank's caller
        if isinstance(error, BadInput | Overdue | TrainingFailed | WireError):

            def again() -> int:  # an error that is passed on, too: other ranks may meet it at the end of their block
                raise BadInput.known(str(error), spoken_here=False) if passed_on else error

            status = ending_together(self._transport, again)
            if not passed_on:
                raise SystemExit(status) from None
        elif self.size > 1:
            sys.stderr.write(traceback_of_rank(error))
            abort(1)


def number(value: float | torch.Tensor, what: str) -> float:
    """A number, or a tensor of one element, as a float. Raises BadInput that begins with `what` if it is neither."""
    with naming(what, TypeError, ValueError, RuntimeError):
        return float(value.detach() if isinstance(value, torch.Tensor) else value)
