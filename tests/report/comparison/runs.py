"""Finished runs of a comparison's elements, without training."""

import json
from pathlib import Path
from typing import Any

from mpitrain.config import load, to_toml
from mpitrain.report.comparison.matrix import Element


def finish(element: Element, errors: list[tuple[float, float]], ranks: int | None = None) -> None:
    """A run folder with these (seconds, test error), at 100 samples a second, on the ranks it takes or others."""
    ranks = element.ranks if ranks is None else ranks
    element.folder.mkdir(parents=True)
    overrides = [word for word in element.words if "=" in word]
    path = None if element.words[0] == "--set" else Path(element.words[0])
    (element.folder / "config.toml").write_text(to_toml(load(path, overrides)))
    records: list[dict[str, Any]] = [
        {"event": "start", "ranks": ranks, "workers": element.workers, "samples": 0, "seconds": 0.0}
    ]
    for seconds, error in errors:
        place = {"seconds": seconds, "samples": int(100 * seconds), "epoch": seconds / 10}
        records.append({"event": "evaluate", **place, "test_error": error, "test_loss": 3 * error})
    summary = {**records[-1], "ranks": ranks, "samples_per_second": 100.0, "exit_reason": "finished"}
    del summary["event"]
    records.append({"event": "end", **summary})
    (element.folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (element.folder / "summary.json").write_text(json.dumps(summary))
