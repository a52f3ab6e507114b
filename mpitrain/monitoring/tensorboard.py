"""TensorBoard event files beside metrics.jsonl, with the same numbers, through tensorboardX (no PyTorch)."""

import time
from pathlib import Path
from typing import Any

from mpitrain.errors import BadInput

COORDINATES = ("step", "samples", "epoch", "seconds")  # where a record stands, not what it says


class EventFile:
    """Writes the numbers of the records "train" and "evaluate" as `train/train_loss`, `evaluate/test_error`, …

    TensorBoard's step is the number of samples. Of a run that goes on from a checkpoint at `after` samples, TensorBoard
    forgets what an earlier start wrote beyond. Raises BadInput naming the folder or the missing library.

    The library's EventsWriter is used, which writes at once; the flush of its SummaryWriter does not wait for the
    events that are still in its queue, and the last ones of a run could be lost.
    """

    def __init__(self, folder: Path, after: int = 0) -> None:
        require()
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self._folder, self._event = folder, Event
        try:
            self._writer = EventsWriter(str(folder / "events"))
        except OSError as error:
            raise BadInput(f"{folder}: {error.strerror}") from error
        if after:
            start = SessionLog(status=SessionLog.START)
            self._writer.write_event(Event(wall_time=time.time(), step=after + 1, session_log=start))

    def write(self, event: str, fields: dict[str, Any]) -> None:
        """A record; at an evaluation, a checkpoint and the end everything goes to the disk. Raises OSError."""
        if event in ("train", "evaluate"):
            self._writer.write_event(self._scalars(event, fields))
        if event in ("evaluate", "checkpoint", "end"):
            self._writer.flush()

    def _scalars(self, event: str, fields: dict[str, Any]) -> Any:
        record = self._event(wall_time=time.time(), step=fields["samples"])
        for name, value in fields.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and name not in COORDINATES:
                record.summary.value.add(tag=f"{event}/{name}", simple_value=value)
        return record


def require() -> Any:
    """The library. Raises BadInput when it is missing."""
    try:
        import tensorboardX
    except ImportError:
        raise BadInput("run.tensorboard needs tensorboardX (the extra mpitrain[tensorboard])") from None
    return tensorboardX
