"""The run folder of a loop of the user's own: what the report needs of it."""

import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from mpitrain import __version__
from mpitrain.algorithms import name_of
from mpitrain.api.folder import Reserved
from mpitrain.api.options import TrainOptions
from mpitrain.checkpoint.files import CONFIG, sealed
from mpitrain.config import Config, to_toml
from mpitrain.errors import BadInput
from mpitrain.files import Record, write_whole
from mpitrain.flat import Array, parameters_sha256
from mpitrain.monitoring.records import Metrics, summary_text
from mpitrain.mpi import Transport, library

#: Keys that records have by themselves, and keys that a report does not read as numbers: not for the user's numbers.
OWN = {
    *("event", "step", "samples", "seconds", "epoch", "algorithm", "ranks", "workers", "mpi", "resumed", "version"),
    *("samples_per_second", "bytes_sent", "bytes_received", "messages_sent", "parameters_sha256", "exit_reason"),
    *("time", "merit", "staleness_histogram", "bytes_by_kind", "silent", "lost_ranks"),
}


class RunRecord(ExitStack):
    """Counts the samples of all ranks, as if they were where this rank is, `before` of which a `load` brought, and this
    rank's `own` since; rank 0 also writes the run folder. Raises BadInput naming the folder."""

    def __init__(self, transport: Transport, config: Config, out: Path | None) -> None:
        super().__init__()
        self._transport, self._began = transport, time.monotonic()
        self.samples = self.before = self.own = 0
        self._results: Record = {}
        self._summary: Record = {}  # once the block has ended
        self.algorithm = name_of(config.algorithm)
        self._told: Record = {"algorithm": self.algorithm, "ranks": transport.size, "workers": transport.size}
        self.folder: Path | None = None
        reserved = self.enter_context(Reserved(transport, "give another out, also where ranks.load goes on"))
        reserved.reserve_new(config, TrainOptions(None, (), out=out))
        if reserved.lease is not None:
            self.folder = reserved.lease.folder
            write_whole(self.folder / CONFIG, sealed(to_toml(config)))
            self._metrics = Metrics(self.folder / "metrics.jsonl")
            told = {**self._told, "mpi": library(), "resumed": False, "version": __version__}
            self._metrics.write("start", **told, **self._place())

    def write(self, values: Record, step: int, epoch: int) -> None:
        """Record the user's numbers. Raises BadInput naming the keys among them that are in OWN."""
        if taken := ", ".join(sorted(OWN & values.keys())):
            raise BadInput(f"ranks.log: {taken}: in the run's own records; log it by another name")
        self._results |= values
        if self.folder is not None:
            event = "train" if set(values) <= {"train_loss"} else "evaluate"
            self._metrics.write(event, step=step, **self._place(epoch), **values)
            if self._summary:
                self._summarise(self.folder, values)

    def add_up(self) -> None:
        """Count what each rank has had, which may be another number of batches. Collective."""
        own = np.array([float(self.own)])
        self._transport.sum(own, "the ranks' samples")
        self.samples = self.before + int(own[0])

    def end(self, x: Array, epoch: int, reason: str) -> None:
        """Record that the training has ended with the parameters `x`, and write its summary; `reason`: "finished", …"""
        if self.folder is not None:
            place, traffic = self._place(epoch), self._transport.traffic
            told: Record = {
                **self._told,
                **place,
                "samples_per_second": (self.samples - self.before) / max(time.monotonic() - self._began, 1e-9),
                **self._results,
                "bytes_sent": traffic.bytes_sent,
                "bytes_received": traffic.bytes_received,
                "messages_sent": traffic.messages_sent,
                "parameters_sha256": parameters_sha256(x),
                "exit_reason": reason,
            }
            self._summarise(self.folder, told)
            self._metrics.write("end", **told)

    def _summarise(self, folder: Path, told: Record) -> None:
        self._summary |= told
        write_whole(folder / "summary.json", summary_text(self._summary))

    def _place(self, epoch: int | None = None) -> Record:
        seconds = time.monotonic() - self._began
        return {"samples": self.samples, "seconds": seconds, **({} if epoch is None else {"epoch": epoch})}
