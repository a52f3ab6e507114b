"""`train`: build everything from the configuration, run this rank's part, leave the run folder behind.

What can fail because of the user's input is done by all ranks together (`agreed`), so that one of them says why and
all leave with status 2.
"""

import hashlib
import os
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from threadpoolctl import threadpool_limits

from mpitrain import __version__, checkpoint, saving
from mpitrain import config as configuration
from mpitrain.algorithms import chunks_together, name_of
from mpitrain.assignments import Assignments, Work
from mpitrain.config import Config
from mpitrain.data.corpus import Corpus, open_corpus, parts
from mpitrain.data.digits import embedded
from mpitrain.errors import BadInput, Overdue, TrainingFailed
from mpitrain.evaluation import Evaluation, Subset, errors
from mpitrain.learner import Learner
from mpitrain.metrics import Metrics, summary_text, write_whole
from mpitrain.models import Network, build, warm
from mpitrain.monitor import Monitor
from mpitrain.mpi import Transport, abort, library
from mpitrain.progress import Progress
from mpitrain.protocols import PROTOCOLS
from mpitrain.protocols.wire import WireError
from mpitrain.schedule import Schedule
from mpitrain.session import Session, Stop
from mpitrain.state import fresh

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """The command line of `train`."""

    config: Path | None = None
    overrides: tuple[str, ...] = ()
    out: Path | None = None
    resume: Path | None = None
    print_config: bool = False


def train(options: Options) -> int:
    """Train as told; the exit status. Every rank calls this."""
    stop = Stop()
    stop.install()
    transport = Transport()
    try:
        config = _shared_config(transport, options)
        if options.print_config:
            if transport.rank == 0:
                sys.stdout.write(configuration.to_toml(config))
            return 0
        transport.deadline = config.run.deadline
        # What overflows is found where it matters: in the loss, and in the gradient that reaches the server.
        with threadpool_limits(threads(config, transport)), np.errstate(over="ignore", invalid="ignore"):
            return _train(transport, config, options, stop)
    except BadInput as error:
        if not error.agreed:  # one rank alone met it: the others are waiting for it
            _end(transport, str(error), 2)
        return 2
    except (TrainingFailed, Overdue, WireError) as error:
        _end(transport, str(error), 1)
        return 1


def threads(config: Config, transport: Transport) -> int:
    """Threads a rank may use: as told, else by SLURM_CPUS_PER_TASK, else the node's cores divided by its ranks."""
    asked = config.run.threads or int(os.environ.get("SLURM_CPUS_PER_TASK", 0))
    return asked or max(len(os.sched_getaffinity(0)) // transport.local_size, 1)


def agreed(transport: Transport, action: Callable[[], T], what: str) -> T:
    """What `action` returns, once no rank has met bad input in it; else BadInput everywhere, printed by one rank."""
    result, fault = None, ""
    try:
        result = action()
    except BadInput as error:
        fault = str(error) or "bad input"
    faults = transport.gather_texts(fault, what)
    first = next((rank for rank, text in enumerate(faults) if text), None)
    if first is None:
        return result  # type: ignore[return-value]
    if transport.rank == first:
        print(f"mpitrain: {faults[first]}", file=sys.stderr, flush=True)
    transport.barrier(what)
    known = BadInput(faults[first])
    known.agreed = True
    raise known


def _end(transport: Transport, line: str, status: int) -> None:
    """Say why and end the job. Where all ranks see the same fault, rank 0 is given the time to say it alone."""
    if transport.rank:
        time.sleep(1.0)
    print(f"mpitrain: {line}", file=sys.stderr, flush=True)
    if transport.size > 1:
        abort(status)


def _shared_config(transport: Transport, options: Options) -> Config:
    """Rank 0 reads the files; all ranks get what it made of them."""

    def read() -> str:
        if transport.rank:
            return ""
        path = options.resume / "config.toml" if options.resume else options.config
        return configuration.to_toml(configuration.load(path, list(options.overrides), options.resume is not None))

    text = agreed(transport, read, "the configuration")
    return configuration.resolve(tomllib.loads(transport.broadcast(text.encode(), "the configuration").decode()))


def _train(transport: Transport, config: Config, options: Options, stop: Stop) -> int:
    corpus, network, folder = agreed(transport, lambda: _prepare(transport, config, options), "the preparation")
    _compile(transport, network, config)
    session = _session(transport, config, corpus, network, stop)
    resume = options.resume is not None
    agreed(transport, lambda: _furnish(session, folder, resume), "the run folder")
    saving.share(session)
    if resume:
        _share_state(session)
    session.monitor.start_clock()
    PROTOCOLS[config.algorithm.protocol](session)
    stopped = np.array([int(stop.flag)])
    transport.sum(stopped, "the end")
    return _finish(session, folder, bool(stopped[0]))


def _prepare(transport: Transport, config: Config, options: Options) -> tuple[Corpus, Network, Path | None]:
    """Everything that depends on the user's files and keys and needs no other rank."""
    dtype = np.dtype(config.training.dtype)
    corpus = open_corpus(_data_path(config), "train", **_reading(config, dtype))
    model = config.model
    network = build(
        model.preset,
        corpus.shape,
        corpus.classes,
        width=model.width,
        output=model.output,
        l2=model.l2,
        dropout=model.dropout,
        hidden_layers=model.hidden_layers,
    )
    wanted, there = Schedule(config, corpus.samples).most_workers, config.algorithm.workers(transport.size)
    config.algorithm.check_steps(Schedule(config, corpus.samples).steps(there))
    if wanted > there:
        raise BadInput(f"stages: a stage asks for {wanted} workers, these {transport.size} ranks have {there}")
    config.algorithm.fits(network, transport.size)
    return corpus, network, _run_folder(config, options) if transport.rank == 0 else None


def _data_path(config: Config) -> Path:
    return Path(config.data.path) if config.data.path else embedded()


def _reading(config: Config, dtype: np.dtype) -> dict[str, Any]:
    return {"context": config.data.context, "dtype": dtype, "memory_limit": int(config.data.memory_limit_gb * 1e9)}


def _run_folder(config: Config, options: Options) -> Path:
    if options.resume:
        return options.resume
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{name_of(config.algorithm)}"
    folder = options.out or Path(config.run.out) / name
    try:
        folder.mkdir(parents=True, exist_ok=options.out is None)
    except FileExistsError:
        raise BadInput(f"{folder}: is there already; --resume continues a run") from None
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror}") from error
    return folder


def _compile(transport: Transport, network: Network, config: Config) -> None:
    """One rank of each node fills the cache of compiled loops, then the others read it."""
    if transport.leader:
        warm(network, np.dtype(config.training.dtype))
    transport.local_barrier("the compilation")
    if not transport.leader:
        warm(network, np.dtype(config.training.dtype))


def _session(transport: Transport, config: Config, corpus: Corpus, network: Network, stop: Stop) -> Session:
    training = config.training
    schedule = Schedule(config, corpus.samples)
    state = fresh(
        config.algorithm,
        network.initial(training.seed, np.dtype(training.dtype)),
        Assignments(corpus.samples, schedule.total),
    )
    learner = Learner(
        network,
        corpus,
        seed=training.seed,
        dtype=training.dtype,
        per_sample=training.rate_per == "sample",
        independent=getattr(config.algorithm, "sampling", "") == "independent",
        loaders=chunks_together(config.algorithm),
    )
    members = list(range(transport.size if config.algorithm.workers(transport.size) > 1 or _has_server(config) else 1))
    monitor = Monitor(config, time.monotonic, state, corpus.samples)
    return Session(config, transport, members, network, learner, schedule, state, monitor, time.monotonic, stop)


def _has_server(config: Config) -> bool:
    return config.algorithm.protocol in ("server", "elastic")


def _furnish(session: Session, folder: Path | None, resume: bool) -> None:
    """Rank 0's monitor gets its files, the held-out parts and, on a resume, the newest whole checkpoint."""
    config, monitor, state = session.config, session.monitor, session.state
    if folder is None:
        return
    saver = session.saver = saving.Saver(folder / "checkpoints", session.network.layout, config.run.checkpoints_kept)
    monitor.progress = Progress(config.run.progress, session.schedule.total)
    if resume:
        found, skipped = checkpoint.newest(folder / "checkpoints")
        for line in skipped:
            print(f"mpitrain: {line}", file=sys.stderr)
        if found is None:
            raise BadInput(f"{folder / 'checkpoints'}: no whole checkpoint to resume from")
        checkpoint.load_state(found, state, session.network.layout)
        session.resumed = found
        monitor.resume(state)
    write_whole(folder / "config.toml", configuration.to_toml(config))
    monitor.metrics = Metrics(folder / "metrics.jsonl")
    monitor.save = saver.save_state
    path, dtype = _data_path(config), np.dtype(config.training.dtype)
    held_out = sorted(
        (part for part in parts(path) if part != "train"), key=lambda part: (not part.startswith("test"), part)
    )
    corpora: dict[str, Any] = {part: open_corpus(path, part, **_reading(config, dtype)) for part in held_out}
    if config.run.train_subset:
        corpora["train-subset"] = Subset(session.learner.corpus, config.run.train_subset, config.training.seed)
    if corpora:
        slices = _has_server(config) and session.transport.size > 1
        monitor.evaluation = Evaluation(session.network, corpora, dtype, session.clock, slices)
    _say_start(session, resume)


def _say_start(session: Session, resume: bool) -> None:
    config, transport, monitor = session.config, session.transport, session.monitor
    ranks, workers = transport.size, config.algorithm.workers(transport.size)
    server = "a server and " if _has_server(config) and ranks > 1 else ""
    idle = f", {ranks - len(session.members)} idle" if ranks > len(session.members) else ""
    monitor.progress.line(
        f"mpitrain {__version__}: {name_of(config.algorithm)} on {_some(ranks, 'rank')} "
        f"({server}{_some(workers, 'worker')}{idle}), {_some(transport.nodes, 'node')}, "
        f"{_some(threads(config, transport), 'thread')} a rank"
    )
    monitor.progress.line(
        f"{config.data.path or 'embedded digits'}: {session.learner.corpus.samples:,} samples, "
        f"{session.network.classes} classes; {config.model.preset}: {session.network.layout.size:,} parameters"
        + (f"; resumed at epoch {session.state.trained / monitor.samples:.2f}" if resume else "")
    )
    monitor.write("start", ranks=ranks, workers=workers, mpi=library(), resumed=resume, version=__version__)


def _some(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"


def _share_state(session: Session) -> None:
    """Every rank gets the state that rank 0 read from a checkpoint."""
    state, transport = session.state, session.transport
    for vector in state.vectors().values():
        transport.broadcast_array(vector, "the checkpoint")
    numbers = np.array([state.index, state.trained, state.assignments.position], dtype=np.int64)
    transport.broadcast_array(numbers, "the checkpoint")
    state.index, state.trained, state.assignments.position = map(int, numbers)
    ranges = msgspec.json.encode(state.assignments.returned)
    state.assignments.returned = msgspec.json.decode(transport.broadcast(ranges, "the checkpoint"), type=list[Work])


def _finish(session: Session, folder: Path | None, stopped: bool) -> int:
    """Last evaluation, last checkpoint, summary, closing table; the exit status."""
    state, transport, monitor = session.state, session.transport, session.monitor
    seconds = monitor.seconds
    traffic = transport.traffic
    counts = np.array([traffic.bytes_sent, traffic.bytes_received, traffic.messages_sent], dtype=np.int64)
    if transport.rank == 0 and _has_server(session.config) and transport.size > 1:
        counts[:] = 0  # the server's side mirrors its workers'
    transport.sum(counts, "the end")
    replicas = None
    protocol = session.config.algorithm.protocol
    if protocol == "peers" or (protocol == "synchronous" and len(session.members) > 1):
        digests = transport.gather_texts(hashlib.sha256(state.little_endian()).hexdigest(), "the end")
        replicas = len(set(digests)) == 1
    if folder is not None:
        if not stopped:
            monitor.finish(state)
        monitor.save = lambda state, outstanding: saving.together(session, outstanding)
        monitor.checkpoint(state)
        fields = _summary(session, seconds, counts.tolist(), "stopped" if stopped else "finished")
        if replicas is not None:
            fields["replicas_identical"] = replicas
        monitor.write("end", **fields)
        write_whole(folder / "summary.json", summary_text(fields))
        monitor.progress.close()
        monitor.progress.table(_closing_rows(fields), str(folder))
    else:
        saving.together(session, [])
    transport.barrier("the end")
    return 128 + session.stop.signal if stopped else 0


def _summary(session: Session, seconds: float, counts: list[int], reason: str) -> dict[str, Any]:
    state, monitor, ranks = session.state, session.monitor, session.transport.size
    trained_now = monitor.trained_now
    return {
        "algorithm": name_of(session.config.algorithm),
        "ranks": ranks,
        "workers": session.config.algorithm.workers(ranks),
        "samples": state.trained,
        "seconds": seconds,
        "samples_per_second": trained_now / max(seconds - monitor.seconds_before, 1e-9),
        "train_loss": monitor.train_loss,
        "test_loss": monitor.results.get("test_loss"),
        "test_error": monitor.results.get("test_error"),
        **{key: value for key, value in monitor.results.items() if key not in ("test_loss", "test_error")},
        "bytes_sent": counts[0],
        "bytes_received": counts[1],
        "messages_sent": counts[2],
        **monitor.summary(),
        "parameters_sha256": hashlib.sha256(state.little_endian()).hexdigest(),
        "exit_reason": reason,
    }


def _closing_rows(fields: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("algorithm", f"{fields['algorithm']}, {_some(fields['workers'], 'worker')}"),
        (
            "samples",
            f"{fields['samples']:,} in {fields['seconds']:.1f} s, {fields['samples_per_second']:,.0f} a second",
        ),
        (
            "updates",
            f"{fields['updates']:,}, staleness {fields['staleness_mean']:.1f} (at most {fields['staleness_max']})",
        ),
        ("exchanged", f"{(fields['bytes_sent'] + fields['bytes_received']) / 1e6:,.1f} MB ({fields['exchange']})"),
        ("train loss", f"{fields['train_loss']:.4f}"),
    ]
    rows += [(f"{part} error", f"{share:.2%}") for part, share in errors(fields).items()]
    return rows if fields["exit_reason"] == "finished" else [*rows, ("stopped", "by a signal; --resume continues")]
