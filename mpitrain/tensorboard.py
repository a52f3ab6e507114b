"""TensorBoard event files beside metrics.jsonl, with the same numbers, through tensorboardX (no PyTorch)."""

from pathlib import Path
from typing import Any

from mpitrain.errors import BadInput

COORDINATES = ("step", "samples", "epoch", "seconds")  # where a record stands, not what it says


class EventFile:
    """Writes the numbers of the records "train" and "evaluate" as `train/train_loss`, `evaluate/test_error`, …

    TensorBoard's step is the number of samples. Of a run that goes on from a checkpoint at `after` samples, TensorBoard
    forgets what an earlier start wrote beyond. Raises BadInput naming the folder or the missing library.
    """

    def __init__(self, folder: Path, after: int = 0) -> None:
        try:
            self._writer = require().SummaryWriter(str(folder), purge_step=after + 1 if after else None, flush_secs=10)
        except OSError as error:
            raise BadInput(f"{folder}: {error.strerror}") from error

    def write(self, event: str, fields: dict[str, Any]) -> None:
        """A record; at the end of a run everything goes to the disk."""
        if event in ("train", "evaluate"):
            for name, value in fields.items():
                if isinstance(value, int | float) and not isinstance(value, bool) and name not in COORDINATES:
                    self._writer.add_scalar(f"{event}/{name}", value, fields["samples"])
        if event in ("evaluate", "checkpoint", "end"):
            self._writer.flush()


def require() -> Any:
    """The library. Raises BadInput when it is missing."""
    try:
        import tensorboardX
    except ImportError:
        raise BadInput("run.tensorboard needs tensorboardX (the extra mpitrain[tensorboard])") from None
    return tensorboardX
