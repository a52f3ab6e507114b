"""Event files hold what metrics.jsonl holds. They are read back by their published layout, not by the writer."""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mpitrain.monitoring.records import Metrics
from mpitrain.monitoring.tensorboard import COORDINATES, EventFile

Scalars = dict[tuple[str, int], float]


def events(folder: Path) -> Iterator[bytes]:
    """The records of all event files: uint64 length, 4 bytes of checksum, that many bytes, 4 bytes of checksum."""
    for path in sorted(folder.glob("events.out.tfevents.*")):
        content = path.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            yield content[12 : 12 + length]
            content = content[16 + length :]


def scalars(folder: Path) -> Scalars:
    """By tag and step."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for record in events(folder):
        event = Event.FromString(record)
        found |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
    return found


def recorded(folder: Path) -> Scalars:
    """The same of metrics.jsonl."""
    found = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        event = record.pop("event")
        numbers = {name: value for name, value in record.items() if isinstance(value, float | int)}
        if event in ("train", "evaluate"):
            found |= {(f"{event}/{k}", record["samples"]): v for k, v in numbers.items() if k not in COORDINATES}
    return found


def test_numbers_are_those_of_the_record(tmp_path: Path) -> None:
    """Numbers that are none are left out; other records too."""
    metrics = Metrics(tmp_path / "metrics.jsonl", EventFile(tmp_path))
    metrics.write("start", ranks=3)
    metrics.write("train", step=2, samples=64, epoch=0.5, seconds=1.0, train_loss=0.25, staleness_mean=float("nan"))
    metrics.write("evaluate", step=2, samples=64, epoch=0.5, seconds=1.0, test_error=0.125, device="cpu")
    metrics.write("end", samples=64, test_error=0.125)
    wanted = {("train/train_loss", 64): 0.25, ("evaluate/test_error", 64): 0.125}
    assert scalars(tmp_path) == recorded(tmp_path) == wanted


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_run_writes_both(simulated: Callable[..., Any], tmp_path: Path, ranks: int) -> None:
    """A resumed one writes a second file, which tells TensorBoard where it goes on."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    option = ("--set", "run.tensorboard=true", "--set", "algorithm.name=easgd")
    assert simulated(ranks, *option, "--set", "training.epochs=2", "--out", "run").status == 0
    assert simulated(ranks, "--resume", "run", "--set", "training.epochs=3").status == 0
    found, wanted = scalars(tmp_path / "run"), recorded(tmp_path / "run")
    assert set(found) == set(wanted) and ("evaluate/test_error", 3 * 1438) in found
    assert all(found[key] == pytest.approx(wanted[key], rel=1e-6) for key in wanted)
    starts = [e for r in events(tmp_path / "run") if (e := Event.FromString(r)).session_log.status == SessionLog.START]
    assert [start.step for start in starts] == [2 * 1438 + 1]


def test_without_the_library_it_is_one_line(launch: Callable[..., Any], tmp_path: Path) -> None:
    """And no run folder."""
    hidden = "import sys; sys.modules['tensorboardX'] = None; from mpitrain.__main__ import main; sys.exit(main())"
    ended = launch(2, "--set", "run.tensorboard=true", "--out", "run", program=("-c", hidden))
    ours = [line for line in ended.err.splitlines() if line.startswith("mpitrain: ")]
    assert ended.status == 2 and len(ours) == 1 and "mpitrain[tensorboard]" in ours[0]
    assert not (tmp_path / "run").exists()
