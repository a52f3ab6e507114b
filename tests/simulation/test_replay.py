"""`run.record_order` and `mpitrain simulate --replay`: a training's events again, to the bit."""

import json
import re
import struct
from collections.abc import Callable
from contextlib import chdir
from itertools import pairwise
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
import xxhash
from msgspec.structs import replace
from threadpoolctl import threadpool_limits

from mpitrain import __version__
from mpitrain.__main__ import main
from mpitrain.api.options import TrainOptions
from mpitrain.api.train import train_on
from mpitrain.errors import BadInput
from mpitrain.mpi import Transport
from mpitrain.mpi.order import MAGIC, TAGS, EventKind, LoggedEvent, LogHeader, LogWriter, Order, file_of
from mpitrain.mpi.recording import EventRecorder, made_by
from mpitrain.mpi.tags import Tag
from mpitrain.signals import STOPPED, Stop
from mpitrain.simulation import command
from mpitrain.simulation.job import Job
from mpitrain.simulation.messages import ClusterNetwork

HEADER = LogHeader("a run", 1, 2, [0, 0], 1, 3, "a machine", "")
KEYS = ("run.record_order=true", "run.device=cpu", "run.progress=none", "training.epochs=1", "run.evaluate_every=0.4")
SAVING = "run.checkpoint_samples=400"
#: In each of these what comes first decides.
FREE = {
    "asgd": (SAVING,),
    "easgd": ("algorithm.tau=2", SAVING),
    "sparse-delta": (SAVING,),
    "chan2014": ("algorithm.name=asgd", "algorithm.preset=chan2014"),
}


def arguments(*keys: str) -> list[str]:
    """Of the command line."""
    return [word for key in keys for word in ("--set", key)]


def replayed(run: Path, *more: str) -> int:
    """The exit status of a replay into the folder `again` beside the run."""
    with chdir(run.parent):
        return main(["simulate", "--replay", str(run), "--out", "again", "--set", "run.progress=none", *more])


def summary(run: Path) -> dict[str, Any]:
    """Its summary.json."""
    return dict(json.loads((run / "summary.json").read_text()))


def records(run: Path, event: str) -> list[str]:
    """The lines of metrics.jsonl with an event."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [line for line in lines if json.loads(line)["event"] == event]


def rewritten(path: Path, events: list[tuple[EventKind, int]]) -> None:
    """Put other events into a file, which is then whole."""
    order = Order(path)
    path.unlink()
    writer = LogWriter(path, order.header)
    for kind, value in events:
        for _ in range(value if kind is EventKind.NOTHING else 0):
            writer.event(EventKind.NOTHING)
        if kind is not EventKind.NOTHING:
            writer.event(kind, value)
    writer.close(order.end.reason, order.end.parameters)


def told(path: Path) -> list[tuple[EventKind, int]]:
    """The events of a file."""
    return [event[1:] for event in Order(path).events()]


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A run of three simulated ranks of `asgd`."""
    return record(tmp_path / "run", "algorithm.name=asgd")


def record(run: Path, *keys: str) -> Path:
    """A run of three simulated ranks whose messages are late by chance."""
    job = Job[int](3, ClusterNetwork(jitter=1e-3, seed=4), seconds=lambda rank, samples: 1e-3 * (2 + rank))
    options = TrainOptions(overrides=(*keys, *KEYS), out=run)
    with threadpool_limits(1):  # a product's bits depend on the number of threads
        assert set(job.run(lambda transport: train_on(transport, options, Stop()))) == {0}
    return run


# ---- the file


def test_the_bytes_of_a_file(tmp_path: Path) -> None:
    """Two looks in vain (2·8 + 0), a message of rank 1 ((1·4096 + 4)·8 + 2), 5 µs on the clock (5·8 + 4)."""
    path = file_of(tmp_path, 1)
    writer = LogWriter(path, HEADER)
    writer.event(EventKind.NOTHING)
    writer.event(EventKind.NOTHING)
    writer.event(EventKind.MESSAGE, TAGS + Tag.TO_MASTER)
    writer.event(EventKind.CLOCK, 5)
    writer.close(0, "abc")
    at, content, frames = len(MAGIC), path.read_bytes(), list[bytes]()
    assert content.startswith(MAGIC)
    for number in range(3):
        kind, length, checksum = struct.unpack_from("<BIQ", content, at)
        frames.append(content[at + 13 : at + 13 + length])
        assert kind == number and checksum == xxhash.xxh3_64_intdigest(frames[-1], 8 * number + kind)
        at += 13 + length
    assert at == len(content)
    assert frames[1] == bytes([0x10, 0xA2, 0x80, 0x02, 0x2C])
    assert json.loads(frames[2]) == {"events": 3, "reason": 0, "parameters": "abc"}
    order = Order(path)
    assert order.header == HEADER and order.end.parameters == "abc"
    assert list(order.events()) == [
        LoggedEvent(0, EventKind.NOTHING, 2),
        LoggedEvent(1, EventKind.MESSAGE, TAGS + Tag.TO_MASTER),
        LoggedEvent(2, EventKind.CLOCK, 5),
    ]


def test_a_file_that_is_not_as_it_was_written_is_refused(tmp_path: Path) -> None:
    """Any byte changed, any end cut off, a frame left out or twice there, a byte too many."""
    path = file_of(tmp_path, 0)
    writer = LogWriter(path, replace(HEADER, rank=0))
    for number in range(20_000):  # more than one frame
        writer.event(EventKind.CLOCK, number * number)
    writer.close(0, "")
    content, frames, at = path.read_bytes(), list[bytes](), len(MAGIC)
    while at < len(content):
        length = 13 + struct.unpack_from("<BI", content, at)[1]
        frames.append(content[at : at + length])
        at += length
    assert len(frames) > 3
    step = max(len(content) // 50, 1)
    places = [*range(len(MAGIC) + 14), *range(len(MAGIC) + 14, len(content), step)]
    spoilt = [content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :] for at in places]
    spoilt += [content[:at] for at in (*places, len(content) - 1)]
    spoilt += [MAGIC + b"".join(frames[:1] + frames[2:]), MAGIC + b"".join(frames[:2] + frames[1:]), content + b"\0"]
    for each in spoilt:
        path.write_bytes(each)
        with pytest.raises(BadInput, match=r"rank-00000: "):
            Order(path)


def test_a_full_disk_ends_the_record_and_not_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line names the file; what is seen stays what it is."""
    writer = LogWriter(file_of(tmp_path, 1), HEADER)
    with Path("/dev/full").open("wb", buffering=0) as writer._file:
        recorder = EventRecorder(writer)
        readings = [recorder.clock(1e9 * number) for number in range(20_000)]
        assert readings == [1e9 * number for number in range(20_000)]
        assert recorder.happened(lambda: True) and not recorder.happened(lambda: False)
        recorder.end(0, lambda: "")
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert re.search(r"rank-00001: cannot be written: No space left on device; the training goes on without", err)


# ---- again


@pytest.mark.parametrize("name", FREE)
def test_a_run_under_mpi_is_repeated_to_the_bit(launch: Callable[..., Any], tmp_path: Path, name: str) -> None:
    """With what its first rank measured on the way, and when: the clock that decides is the recorded one."""
    keys = (*KEYS, *FREE[name]) if name == "chan2014" else (f"algorithm.name={name}", *KEYS, *FREE[name])
    ended = launch(3, *arguments(*keys), "--out", "run")
    assert ended.status == 0, ended.err
    assert replayed(tmp_path / "run") == 0
    run, again = summary(tmp_path / "run"), summary(tmp_path / "again")
    for key in ("parameters_sha256", "seconds", "train_loss", "test_loss", "bytes_sent", "updates", "exchange"):
        assert run[key] == again[key], key
    assert records(tmp_path / "run", "evaluate") == records(tmp_path / "again", "evaluate") != []
    assert run.get("staleness_histogram") == again.get("staleness_histogram")


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", ["asgd", "allreduce", "sparse-delta"])
def test_a_trace_can_be_added_to_a_recorded_run_or_left_out(tmp_path: Path, name: str, traced: bool) -> None:
    """Also where a trace names the peers whose window is full."""
    tight = ("algorithm.window=1", "algorithm.patience=0") if name == "sparse-delta" else ()
    run = record(tmp_path / "run", f"algorithm.name={name}", f"run.trace={str(traced).lower()}", *tight)
    assert replayed(run, "--set", f"run.trace={str(not traced).lower()}") == 0
    assert (tmp_path / "again" / "trace.json").exists() is not traced


def test_a_stop_request_comes_again_where_it_came(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To a worker, in the middle of the training."""
    job, stops = Job[int](3, seconds=lambda rank, samples: 1e-3 * (2 + rank)), [Stop() for _ in range(3)]
    options = TrainOptions(overrides=("algorithm.name=easgd", *KEYS), out=tmp_path / "run")

    def program(transport: Transport) -> int:
        if transport.rank == 2:
            job.scheduler.at(20e-3, lambda: setattr(stops[2], "flag", True))
        return train_on(transport, options, stops[transport.rank])

    with threadpool_limits(1):
        assert set(job.run(program)) == {STOPPED}
    assert replayed(tmp_path / "run") == STOPPED
    run, again = summary(tmp_path / "run"), summary(tmp_path / "again")
    assert 0 < run["samples"] == again["samples"] < 1438
    assert run["parameters_sha256"] == again["parameters_sha256"]
    assert "to the bit" in capsys.readouterr().out


def test_what_follows_a_resume_is_not_recorded(recorded: Path, simulated: Callable[..., Any]) -> None:
    """A warning says so; the record stays that of the first session, and can be replayed."""
    before, parameters = file_of(recorded, 0).read_bytes(), summary(recorded)["parameters_sha256"]
    ended = simulated(3, "--resume", str(recorded), *arguments("training.epochs=1.5", "run.progress=plain"))
    assert ended.status == 0, ended.err
    assert "warning: run.record_order: " in ended.out + ended.err
    assert file_of(recorded, 0).read_bytes() == before and summary(recorded)["samples"] > 1438
    assert replayed(recorded) == 0
    assert summary(recorded.parent / "again")["parameters_sha256"] == parameters


# ---- not again


def test_events_in_another_order_do_not_pass(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neighbouring messages of two workers to the master, each with its content: where the gradients of the two are
    merged the other way round, the training is another one, which is said."""
    path, said = file_of(recorded, 0), list[str]()
    events = told(path)
    own = [
        at
        for at, (kind, value) in enumerate(events)
        if kind is EventKind.MESSAGE and value % TAGS == Tag.TO_MASTER and events[at + 1][0] is EventKind.CONTENT
    ]
    pairs = [(a, b) for a, b in pairwise(own) if events[a][1] != events[b][1]]
    assert len(pairs) > 4
    for a, b in pairs[:: len(pairs) // 4]:
        changed = list(events)
        changed[a : a + 2], changed[b : b + 2] = events[b : b + 2], events[a : a + 2]
        rewritten(path, changed)
        status = replayed(copied(recorded, f"swapped-{a}"))
        again = recorded.parent / f"swapped-{a}" / "again"
        assert status == 1 or summary(again)["parameters_sha256"] == summary(recorded)["parameters_sha256"]
        said += [capsys.readouterr().err] if status else []
    assert said
    for line in said:
        assert line.count("\n") == 2
        assert "rank-0000" in line


def copied(run: Path, name: str) -> Path:
    """A copy of a run in a folder of its own."""
    return Path(copytree(run, run.parent / name / "run"))


def test_a_message_of_another_content_is_named(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The record's checksum of what came differs: rank and event are named."""
    path = file_of(recorded, 1)
    events = told(path)
    at = [kind for kind, _ in events].index(EventKind.CONTENT)
    rewritten(path, [*events[:at], (EventKind.CONTENT, events[at][1] ^ 1), *events[at + 1 :]])
    assert replayed(recorded) == 1
    err = capsys.readouterr().err
    assert f"rank 1: {path}, event {at}: " in err and "gets something else from rank 0" in err
    assert err.count("\n") == 2 and err.endswith(f"recorded by {made_by()}; this is the same\n"), err


def test_another_state_of_the_program_is_named(
    recorded: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose events or parameters may differ from the recorded ones."""
    path, before = file_of(recorded, 2), made_by()
    rewritten(path, told(path)[:-1])
    monkeypatch.setattr(command, "made_by", lambda: before.replace("(", "(0"))
    assert replayed(recorded) == 1
    assert f"rank-00000: recorded by {before}; this is mpitrain {__version__} (0" in capsys.readouterr().err


def test_an_event_that_never_comes_is_named(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A message to the master of the master itself."""
    path = file_of(recorded, 0)
    events = told(path)
    at = [kind for kind, _ in events].index(EventKind.MESSAGE)
    rewritten(path, [*events[:at], (EventKind.MESSAGE, events[at][1] % TAGS), *events[at + 1 :]])
    assert replayed(recorded) == 1
    err = capsys.readouterr().err
    assert err.startswith("mpitrain: what is recorded never comes: ") and err.count("\n") == 2
    assert f"rank 0 waits for a message of rank 0 (TO_MASTER): event {at} of {path}" in err


def test_a_record_of_fewer_or_more_events_does_not_fit(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line each, of the rank that has too few or too many."""
    path = file_of(recorded, 2)
    events = told(path)
    rewritten(path, events[:-1])
    assert replayed(copied(recorded, "fewer")) == 1
    assert f"after all {len(events) - 1:,} events of " in capsys.readouterr().err
    rewritten(path, [*events, (EventKind.CLOCK, 1)])
    assert replayed(copied(recorded, "more")) == 1
    assert "rank 2: its training ends 1 events before " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--ranks", "4"), r"--ranks 4: .*order/rank-00000 is of 3 ranks"),
        (("--set", "training.seed=9"), r"--set training\.seed: a replay is of the recorded training"),
        (("--set", "algorithm.name=easgd"), r"--set algorithm\.name: a replay"),
        (("--set", "run.recrd=true"), r"recrd"),
        (("--phantom",), r"--phantom does not fit"),
        (("--density", "0.1"), r"--density does not fit"),
        (("keys.toml",), r"a configuration does not fit"),
    ],
)
def test_what_does_not_fit_a_record_is_one_line(
    recorded: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], said: str
) -> None:
    """And status 2; no folder is made."""
    refused(recorded, capsys, said, *more)


def refused(run: Path, capsys: pytest.CaptureFixture[str], said: str, *more: str) -> None:
    """A replay is, in one line."""
    capsys.readouterr()
    assert replayed(run, *more) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert re.search(said, err)
    assert not (run.parent / "again").exists()


def test_a_file_that_is_missing_cut_off_or_of_another_run_is_named(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last of three."""
    path = file_of(recorded, 2)
    order, content, events = Order(path), path.read_bytes(), told(path)
    path.write_bytes(content[:-40])
    refused(recorded, capsys, r"rank-00002: ends after [\d,]+ events, without the training's end")
    path.unlink()
    refused(recorded, capsys, r"rank-00002: No such file")
    writer = LogWriter(path, replace(order.header, run="another"))
    for kind, value in events[:1]:
        writer.event(kind, value)
    writer.close(0, "")
    refused(recorded, capsys, r"rank-00002: is not of the run of .*rank-00000")
    rmtree(path.parent)
    refused(recorded, capsys, r"run: is not recorded: run\.record_order = true was not set")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("run.exchange=shared", r"run\.record_order: of run\.exchange = 'shared' the order is in accesses to memory"),
        ("run.exchange=one-sided", r"run\.record_order: of run\.exchange = 'one-sided'"),
        ("run.device=gpu", r"run\.record_order: run\.device = 'gpu'"),
        ("algorithm.centre=sharded", r"algorithm\.centre = 'sharded': needs one-sided access"),
    ],
)
def test_what_cannot_be_recorded_is_refused(capsys: pytest.CaptureFixture[str], key: str, said: str) -> None:
    """In one line."""
    assert main(arguments("algorithm.name=easgd", "run.record_order=true", key)) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert re.search(said, err)
