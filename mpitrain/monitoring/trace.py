"""The trace of a training, `run.trace`: what every rank did when, as trace events that Perfetto and Chrome show.

The format is the JSON object of Google's "Trace Event Format": a process for each rank, with a thread for its time and
one for what has no length, in microseconds. Each rank writes the text of its own events, and rank 0 puts the texts
together at the end of the training; one that fails leaves none.
"""

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import msgspec
import numpy as np

from mpitrain import __version__
from mpitrain.device import Cpu
from mpitrain.errors import BadInput, WireError
from mpitrain.files import Record, checksum, write_below
from mpitrain.monitoring.counters import Counters
from mpitrain.monitoring.monitor import MasterMonitor
from mpitrain.monitoring.recorder import Instant, Stretch, TimeRecorder
from mpitrain.mpi import Transport
from mpitrain.mpi.tags import Tag
from mpitrain.stopwatch import Activity, Stopwatch

NAME, WHAT = "trace.json", "the ranks' traces"
MOST_OF_A_RANK, MOST = 50_000, 500_000  # stretches of time, and as many instants
#: The work of a device. Rules are applied block by block; a loop takes less than the pause between two blocks.
WORK = {
    "update": Activity("an update", pause=50e-6),
    "delta": Activity("a sparse delta of the residual", pause=50e-6),
    "entries": Activity("entries of a sparse delta", pause=50e-6),
}
TIME, POINTS = 0, 1  # the threads of a rank
VIRTUAL = "virtual time, the same for all ranks"
SHARED = "the node's, the same for all ranks"
APART = (
    "each node's own; they were set when the ranks left a barrier after the training, which they do within some "
    "milliseconds, and may have drifted before"
)


class RankTrace(msgspec.Struct, frozen=True):
    """What each rank tells all others for the trace."""

    host: str
    began: float  # when its training began, by its clock
    left: float  # when it left the barrier after the training
    dropped: int  # events that were left out


def observed(device: Cpu, stopwatch: Stopwatch) -> Cpu:
    """The device, with its updates and deltas in the trace; a GPU's are not, as they only begin when a rule returns."""
    if device.name != "cpu":
        return device
    around = device.around or (lambda what, nbytes: nullcontext())

    @contextmanager
    def shown(what: str, nbytes: int) -> Iterator[None]:
        about = stopwatch.about(WORK[what]) if stopwatch.listener is not None and what in WORK else nullcontext()
        with about, around(what, nbytes):
            yield

    return device.observed(shown)


def begin(transport: Transport, counters: Counters) -> TimeRecorder:
    """Begin to record events."""
    recorder = TimeRecorder(transport.clock, max(2, min(MOST_OF_A_RANK, MOST // transport.size)))
    transport.stopwatch.listener = transport.traffic.listener = counters.listener = recorder
    return recorder


def end(transport: Transport, counters: Counters, recorder: TimeRecorder) -> None:
    """Stop recording events."""
    transport.stopwatch.listener = transport.traffic.listener = counters.listener = None
    recorder.close()


def write(
    transport: Transport, recorder: TimeRecorder, monitor: MasterMonitor | None, master: int | None = None
) -> None:
    """Gather the ranks' events and write trace.json, in rank 0's run folder; `master` is a rank that computes none of
    the gradients. Collective."""
    ranks = _told(transport, recorder)
    zero = _zeros(transport, ranks)[transport.rank]
    stretches = [_stretch(each, transport.rank, zero) for each in recorder.stretches]
    instants = [_instant(each, transport.rank, zero) for each in recorder.instants]
    texts = _gathered(transport, _joined([*stretches, *instants]))
    if monitor is None or not monitor.counters.trained_now:
        return
    dropped = {rank: each.dropped for rank, each in enumerate(ranks) if each.dropped}
    if dropped:
        what = f"{sum(dropped.values()):,} events between the first and the last were left out"
        monitor.journal.warn(f"{NAME}: {what}, of {len(dropped)} ranks")
    parts = [_names(transport, ranks, master), *texts]
    about = msgspec.json.encode(_about(transport, monitor.counters, dropped))
    try:
        transport.alive_while(lambda: write_below(monitor.journal.folder, NAME, _whole(about, parts)))
    except BadInput as error:
        monitor.journal.warn(f"{error}; the run is without it")


def _whole(about: bytes, parts: Sequence[bytes]) -> bytes:
    events = b",\n".join(part for part in parts if part)
    return b'{"displayTimeUnit":"ms","otherData":' + about + b',"traceEvents":[\n' + events + b"\n]}\n"


def _about(transport: Transport, counters: Counters, dropped: dict[int, int]) -> Record:
    simulated = bool(transport.runtime.simulated)
    return {
        "program": f"mpitrain {__version__}",
        "ranks": transport.size,
        "simulated": simulated,
        "clock": VIRTUAL if simulated else SHARED if transport.nodes == 1 else APART,
        "from_sample": counters.trained_before,
        "to_sample": counters.trained_all,
        "dropped": {str(rank): count for rank, count in dropped.items()},
    }


# ---- the ranks' clocks


def _told(transport: Transport, recorder: TimeRecorder) -> list[RankTrace]:
    host = "" if transport.runtime.simulated else platform.node()
    transport.barrier(WHAT)
    left = transport.clock()
    dropped = recorder.stretches.dropped + recorder.instants.dropped
    told = msgspec.json.encode(RankTrace(host, recorder.began, left, dropped)).decode()
    return [msgspec.json.decode(text, type=RankTrace) for text in transport.gather_texts(told, WHAT)]


def _zeros(transport: Transport, ranks: Sequence[RankTrace]) -> list[float]:
    """Each rank's clock when the first rank began. Ranks of a node share its clock; all simulated ranks share one."""
    clocks = [0] * len(ranks) if transport.runtime.simulated else transport.node_leaders
    left: dict[int, float] = {}
    for clock, each in zip(clocks, ranks, strict=True):
        left[clock] = min(left.get(clock, each.left), each.left)
    ahead = [left[clock] - left[clocks[0]] for clock in clocks]
    first = min(each.began - shift for each, shift in zip(ranks, ahead, strict=True))
    return [first + shift for shift in ahead]


# ---- the ranks' events


def _names(transport: Transport, ranks: Sequence[RankTrace], master: int | None) -> bytes:
    """The events that name processes and threads."""
    found = list[Record]()
    nodes = sorted(set(transport.node_leaders))
    for rank, each in enumerate(ranks):
        name = f"rank {rank}, node {nodes.index(transport.node_leaders[rank])}"
        labels = ", ".join(filter(None, ("master" if rank == master else "", each.host)))
        found += [
            _named("process_name", rank, {"name": name}),
            *([_named("process_labels", rank, {"labels": labels})] if labels else []),
            _named("process_sort_index", rank, {"sort_index": rank}),
            _named("thread_name", rank, {"name": "time"}),
            _named("thread_name", rank, {"name": "messages and updates"}, POINTS),
        ]
    return _joined(found)


def _named(name: str, rank: int, arguments: Record, thread: int = TIME) -> Record:
    return {"name": name, "ph": "M", "pid": rank, "tid": thread, "args": arguments}


def _joined(events: Sequence[Record]) -> bytes:
    """Events as text."""
    return b",\n".join(map(msgspec.json.encode, events))


def _stretch(each: Stretch, rank: int, zero: float) -> Record:
    began, ended = _nanoseconds(each.began - zero), _nanoseconds(each.ended - zero)
    told: Record = {"looking": _nanoseconds(each.looking) / 1000 if each.looking else None}
    if (about := each.about) is not None:
        told = {"what": about.what, "whom": about.whom, "more": about.more or None, "bytes": about.nbytes, **told}
    arguments = {key: value for key, value in told.items() if value is not None}
    place: Record = {"ph": "X", "pid": rank, "tid": TIME, "ts": began / 1000, "dur": (ended - began) / 1000}
    return {"name": each.kind, **place, "args": arguments}


def _instant(each: Instant, rank: int, zero: float) -> Record:
    place: Record = {"ph": "i", "s": "t", "pid": rank, "tid": POINTS, "ts": _nanoseconds(each.at - zero) / 1000}
    return {"name": each.name, **place, "args": each.arguments}


def _nanoseconds(seconds: float) -> int:
    """Rounded, so that where one event ends the next one begins."""
    return round(seconds * 1e9)


def _gathered(transport: Transport, mine: bytes) -> list[bytes]:
    """All ranks' texts on rank 0, one rank's after the other's; none elsewhere. Raises WireError naming the sender."""
    told = transport.gather_texts(f"{len(mine)} {checksum(mine)}", WHAT)
    if transport.rank:
        if mine:
            transport.wait(transport.begin_send(0, Tag.TRACE, mine), "the first rank to take a trace", whom=[0])
        return []
    texts = [mine]
    for rank, text in enumerate(told[1:], 1):
        length, announced = text.split()
        buffer = np.empty(int(length), np.uint8)
        if buffer.size:
            transport.receive_into(rank, Tag.TRACE, buffer, "a trace")
        texts.append(buffer.tobytes())
        if checksum(texts[-1]) != announced:
            raise WireError(f"rank {rank} sent a damaged trace")
        transport.heartbeat()
    return texts
