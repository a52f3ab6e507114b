"""Say and record that a training has lost ranks and goes on, in new processes or in those that are left; find what was
recorded before it goes on."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mpitrain.errors import BadInput, named, say
from mpitrain.monitoring.records import Metrics, records_of


def restarted(metrics: Path, lost: Sequence[int], how: str, samples: int, reached: int = 0) -> None:
    """Say and record that a training has lost ranks and goes on from a checkpoint of this many samples.

    Before the loss it had trained on `reached` samples, or on those of its records if these are more; the ones after
    the checkpoint are trained on again."""
    reached = max(reached, samples)
    for record in records_of(metrics, "train", "evaluate", "start", "restart"):
        reached = max(reached, count if isinstance(count := record.get("samples"), int) else 0)
        if record["event"] in ("start", "restart"):
            break
    who = f"{named(lost)} {'were' if len(lost) > 1 else 'was'} lost" if lost else "a rank was lost"
    again = f"; at least {reached - samples:,} samples are trained again" if reached > samples else ""
    where = f"goes on after {samples:,} samples" if samples else "begins anew: there is no checkpoint yet"
    text = f"{who} ({how}); the training {where}{again}"
    say(text)
    pairs = [[rank, reached] for rank in lost]
    with suppress(BadInput, OSError):
        metrics.parent.mkdir(parents=True, exist_ok=True)
        Metrics(metrics).write("restart", text=text, samples=samples, repeated=reached - samples, lost_ranks=pairs)


def ended(metrics: Path) -> str:
    """The `exit_reason` of a training whose last record of these is that of its end; otherwise ""."""
    last = next(records_of(metrics, "start", "restart", "failed", "end"), None)
    return str(last["exit_reason"]) if last is not None and last["event"] == "end" else ""


def last_evaluated(metrics: Path, trained: int) -> int:
    """After how many samples the last evaluation on record began, of a training that goes on after `trained` samples;
    0 if there is none. What was recorded before a start is of this training up to where that start went on."""
    last = 0
    for record in records_of(metrics, "start", "evaluate"):
        samples = record.get("samples")
        if isinstance(samples, int) and record["event"] == "start":
            trained = min(trained, samples)
        elif isinstance(samples, int) and samples <= trained:
            last = max(last, samples)
    return last
