"""The run folder of a training: which one it is, reserved for this run before anything in it is looked at."""

import json
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path

from mpitrain.api.options import TrainOptions
from mpitrain.checkpoint import BEST, CONFIG, delete, require_replaceable
from mpitrain.checkpoint.lease import Lease, user
from mpitrain.config import Config
from mpitrain.errors import BadInput, naming
from mpitrain.files import make_numbered, write_below
from mpitrain.monitoring import trace
from mpitrain.monitoring.records import records_of
from mpitrain.mpi import Transport, order


class Reserved(ExitStack):
    """Rank 0's reservation of the run folder, until the context ends; other ranks have no `lease`. `instead` tells the
    user what to do if a new run's folder exists already."""

    lease: Lease | None = None

    def __init__(self, transport: Transport, instead: str = "--resume continues a run") -> None:
        super().__init__()
        self._transport, self._instead = transport, instead

    def reserve_given(self, options: TrainOptions) -> None:
        """Reserve the folder that --resume or --continue names, so that no other run writes a checkpoint there after
        this one has chosen its own. Raises BadInput naming the folder, and the process that uses it."""
        if self._transport.rank or options.print_config:
            return
        if options.continued is not None:
            self._make(options.continued, exist_ok=True)
            self._reserve(options.continued)
        elif options.resume is not None and options.resume.is_dir():
            self._reserve(options.resume)

    def reserve_new(self, config: Config, options: TrainOptions) -> None:
        """Create and reserve the folder of a new run; clear one in which --continue has found no checkpoint. Raises
        BadInput naming the folder."""
        if self._transport.rank:
            return
        if self.lease is None:
            if options.out is not None:
                self._make(options.out, exist_ok=False)
            self._reserve(options.out or make_numbered(config.new_folder(), parents=True))
            self.callback(self._forget_order)
        elif options.resume is None:
            require_replaceable(self.lease.folder)
            _clear(self.lease.folder)

    def _forget_order(self) -> None:
        """Remove the order of events of a run that bad input has ended before it began, so that its folder is empty."""
        folder = self.lease.find() if self.lease is not None else None
        with suppress(OSError):  # the file system may have gone since, of which the last checkpoint has told
            if folder is not None and not (folder / CONFIG).exists():
                shutil.rmtree(folder / order.FOLDER, ignore_errors=True)

    def _reserve(self, folder: Path) -> None:
        self.lease = Lease(folder)
        self.callback(self.lease.release)

    def _make(self, folder: Path, exist_ok: bool) -> None:
        with naming(folder):
            try:
                folder.mkdir(parents=True, exist_ok=exist_ok)
            except FileExistsError:
                raise BadInput(f"{folder}: {user(folder) or f'is there already; {self._instead}'}") from None


def _clear(folder: Path) -> None:
    """Remove the files of an earlier start that wrote no checkpoint; that it was started again stays on record."""
    metrics = folder / "metrics.jsonl"
    restarts = [*records_of(metrics, "restart")][::-1]
    with naming(folder):
        events = folder.glob("events.out.tfevents.*")
        orders = (folder / order.FOLDER).glob("*")
        for left in (folder / trace.NAME, *events, *orders):
            left.unlink(missing_ok=True)
        delete(folder / "checkpoints" / BEST)
    if metrics.exists():  # and not removed, as by it a report knows a run folder
        write_below(folder, metrics.name, "".join(f"{json.dumps(each)}\n" for each in restarts))
