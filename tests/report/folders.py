"""Run folders with known contents."""

import json
import math
from pathlib import Path
from typing import Any

from mpitrain.config import resolve, to_toml

Record = dict[str, Any]


def write_run(
    folder: Path,
    name: str = "asgd",
    records: list[Record] | None = None,
    summary: Record | None = None,
    **settings: dict[str, Any],
) -> Path:
    """A run folder; without `records` those of `curve(8)`, without `summary` an unfinished run."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(to_toml(resolve({"algorithm": {"name": name}, **settings})))
    lines = [json.dumps(record) for record in (curve(8) if records is None else records)]
    if summary is not None:
        lines.append(json.dumps({"event": "end", **summary}))
        (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    return folder


def start(**fields: Any) -> Record:
    """The record that a run begins with."""
    return {"event": "start", "ranks": 3, "workers": 2, "resumed": False, "samples": 0, "seconds": 0.0, **fields}


def curve(epochs: int, speed: float = 100.0, **fields: Any) -> list[Record]:
    """A start and, for each epoch of 1000 samples, a train and an evaluate record with two test parts."""
    found = [start()]
    for epoch in range(1, epochs + 1):
        seconds, loss = 1000 * epoch / speed, 2 * math.exp(-epoch / 3) + 0.02
        place = {"step": 10 * epoch, "samples": 1000 * epoch, "epoch": float(epoch), "seconds": seconds}
        found.append({"event": "train", **place, "train_loss": loss, "updates": 10 * epoch, **fields})
        parts = {"test_clean_loss": loss + 0.1, "test_clean_error": loss / 4, "test_noisy_loss": loss + 0.5}
        parts |= {"test_noisy_error": loss / 3, "test_loss": loss + 0.1, "test_error": loss / 4}
        found.append({"event": "evaluate", **place, "train_loss": loss, **parts})
    return found


def ended(records: list[Record], **fields: Any) -> Record:
    """The summary of a finished run with these records."""
    last = [record for record in records if record["event"] == "evaluate"][-1]
    kept = {key: last[key] for key in last if key.endswith(("_loss", "_error", "samples", "seconds"))}
    counts = {"ranks": 3, "workers": 2, "bytes_sent": 5_000_000, "bytes_received": 4_000_000, "messages_sent": 321}
    ages = {"updates": 80, "staleness_mean": 0.0, "staleness_max": 0}
    rate = {"samples_per_second": last["samples"] / last["seconds"], "exit_reason": "finished"}
    return {"algorithm": "asgd", **kept, **counts, **ages, **rate, **fields}


def every_kind(folder: Path) -> list[Path]:
    """Runs that between them have everything a report can show, one of them killed in mid-line, one resumed after the
    loss of a rank."""
    stale = curve(8, 120.0, staleness_mean=1.5, staleness_max=4)
    ages = {"staleness_mean": 1.5, "staleness_max": 4, "staleness_histogram": {"0": 10, "1": 40, "2": 20, "4": 10}}
    sent = {"density": 0.001, "threshold": 0.5, "residual_norm": 7.0, "bytes_per_minibatch": 400.0}
    sparse = curve(8, 90.0, **sent, compression_ratio=300.0, bits_per_element=12.0)
    kinds = {"bytes_by_kind": {"activations": 3000, "conv_gradients": 1000}, "communication_hidden": 0.8}
    waited = "rank 0: waited 300 s for rank 2 (a heartbeat); run.deadline sets the seconds"
    slow = [*curve(6, 60.0), {"event": "failed", "text": waited, "silent": [2]}]
    again = [start(resumed=True, samples=3000, seconds=50.0), *curve(8, 60.0)[7:]]
    made = [
        write_run(folder / "asgd", "asgd", stale, ended(stale, server_busy_seconds=3.0, **ages)),
        write_run(folder / "sparse", "sparse-delta", sparse, ended(sparse, algorithm="sparse-delta", **sent)),
        write_run(folder / "hybrid", "hybrid", summary=ended(curve(8), algorithm="hybrid", **kinds)),
        write_run(folder / "killed", "easgd", curve(5, 70.0)),
        write_run(folder / "<b>resumed & \"odd'", "msgd", [*slow, *again], ended(again, algorithm="msgd")),
    ]
    with (made[3] / "metrics.jsonl").open("a") as log:
        log.write('{"event": "train", "samples": 60')
    return made
