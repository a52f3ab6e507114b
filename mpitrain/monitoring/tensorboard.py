"""TensorBoard event files beside metrics.jsonl, with the same numbers, through tensorboardX (no PyTorch)."""

import time
from collections.abc import Mapping
from pathlib import Path

from mpitrain.errors import naming

COORDINATES = ("step", "samples", "epoch", "seconds")  # keys that say when a record was written


class EventFile:
    """Writes the numbers of the records "train" and "evaluate" as `train/train_loss`, `evaluate/test_error`, …

    TensorBoard's step is the number of samples. If a run is resumed from a checkpoint at `after` samples, TensorBoard
    discards later events of earlier starts. The library must be installed. Raises BadInput naming the folder.

    This uses the library's EventsWriter, which writes at once: SummaryWriter.flush does not wait for the events in its
    queue, so that the last ones of a run could be lost.
    """

    def __init__(self, folder: Path, after: int = 0) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self._event = Event
        with naming(folder):
            earlier = len(list(folder.glob("events.*")))  # perhaps from this second: names differ only by seconds
            self._writer = EventsWriter(str(folder / "events"), f".{earlier}" if earlier else "")
        if after:
            start = SessionLog(status=SessionLog.START)
            self._writer.write_event(Event(wall_time=time.time(), step=after + 1, session_log=start))

    def write(self, event: str, fields: Mapping[str, object]) -> None:
        """Write a record; flush at an evaluation, a checkpoint and the end. Raises OSError."""
        if event in ("train", "evaluate"):
            self._writer.write_event(self._scalars(event, fields))
        if event in ("evaluate", "checkpoint", "end"):
            self._writer.flush()

    def _scalars(self, event: str, fields: Mapping[str, object]) -> object:
        record = self._event(wall_time=time.time(), step=fields["samples"])
        for name, value in fields.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and name not in COORDINATES:
                record.summary.value.add(tag=f"{event}/{name}", simple_value=value)
        return record
