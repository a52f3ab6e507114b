"""Warnings about configurations that are valid but probably unintended. They are printed before the run, which goes
on."""

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from numba import config as numba
from threadpoolctl import threadpool_info

from mpitrain.algorithms import name_of
from mpitrain.checkpoint.draft import SPARE
from mpitrain.checkpoint.files import folders
from mpitrain.data.normalising import UNNORMALISED
from mpitrain.data.origin import Origin
from mpitrain.errors import named, some
from mpitrain.files import Record, room
from mpitrain.models.model import Model
from mpitrain.sampling.stages import Schedule
from mpitrain.start import THREADS
from mpitrain.training.context import Session


def of_data(schedule: Schedule, class_counts: Sequence[int], measured: Collection[str]) -> Iterator[str]:
    """Warn of a minibatch larger than an epoch, of stages after the end, of samples that all belong to one class, and
    of data without a part that errors are measured on; `measured` names these parts."""
    most = max(settings.minibatch for settings in schedule.trained.values())
    if most > schedule.samples:
        key = "training.minibatch" if schedule.all[0].minibatch == most else "stages: minibatch"
        then = "which are then one minibatch and one update"
        yield f"{key} = {most:,}: an epoch has {schedule.samples:,} samples, {then}"
    if schedule.late:
        yield f"stages: at = {', '.join(map(repr, schedule.late))}: the training has ended by then"
    if sum(count > 0 for count in class_counts) == 1:
        yield "data.path: all samples are of one class; there is nothing to learn"
    if not measured:
        yield "data.path: there is no part dev or test; no error is measured"


def of_room(session: Session, run: Path) -> Iterator[str]:
    """Warn of a disk without room for the checkpoints that are kept, one that is being written, and the best model."""
    if session.saver is None:
        return
    theta, vectors = session.state.theta, session.state.vectors().values()
    own = session.config.algorithm.own_vectors() * session.workers * theta.nbytes
    each, kept = sum(vector.nbytes for vector in vectors) + own, session.config.run.checkpoints_kept
    count = max(kept + 1 - len(folders(session.saver.folder)), 1)
    needed = count * each + (theta.nbytes if session.config.run.checkpoint_best else 0) + SPARE
    with suppress(OSError):
        free = room(run)
        if free < needed:
            yield (
                f"{run}: the disk has {free / 1e6:,.1f} MB left, {count} more checkpoints and the best model need "
                f"{needed / 1e6:,.1f} MB (run.checkpoints_kept = {kept})"
            )


def of_unseen_folder(session: Session) -> list[str]:
    """Warn of ranks that do not see the run folder, where each has a part of every checkpoint. Collective."""
    transport = session.transport
    if session.saver is None or transport.runtime.simulated or not session.config.algorithm.own_vectors():
        return []
    run = session.saver.folder.parent
    with transport.working():
        texts = transport.gather_texts("" if run.is_dir() else "unseen", "the run folder")
    unseen = [rank for rank, text in enumerate(texts) if text]
    why = "no checkpoint is written before the end, and that one lacks their own vectors; all nodes should share it"
    return [f"{run}: not seen by {named(unseen)}: {why}"] if unseen else []


def of_resume(session: Session, before: Record | None) -> Iterator[str]:
    """Say what a changed number of workers changes; `before` is the `start` record of the run that is resumed."""
    options = session.config.algorithm
    if before is None or before.get("algorithm", name_of(options)) != name_of(options):
        return
    settings = session.schedule.at(session.state.trained)
    was, now = before.get("workers"), session.workers
    if (wanted := session.schedule.most_workers) > now:
        yield f"stages: a stage asks for {wanted} workers; {now} are left"
    if settings.workers or not isinstance(was, int) or was < 1:
        return
    if change := options.resumed(settings.learning_rate, was, now):
        yield f"the number of workers p is {now}, was {was}: {change}"


def of_normalising(how: str, told: Origin, resumed: bool) -> Iterator[str]:
    """Warn of frames or images without the statistics by which `data.normalise` would normalise them."""
    if how in ("corpus", "mean") and told.kind in ("frames", "images") and not told.statistics:
        why = "the run began on shards without mean and standard_deviation" if resumed else UNNORMALISED
        yield f"data.normalise = {how!r}: has no effect, {why}"


def of_keys(session: Session) -> Iterator[str]:
    """Warn of a key that changes nothing here, and of a simulated network that is not that of the cluster's file."""
    if said := session.transport.runtime.pace.said:
        yield said
    yield from of_loops()
    run, algorithm = session.config.run, session.config.algorithm
    if run.exchange in ("shared", "one-sided") and not algorithm.has_master:
        yield f"run.exchange = {run.exchange!r}: has no effect, {name_of(algorithm)} has no server"
    if run.gradient_statistics and algorithm.divides:
        yield f"run.gradient_statistics: has no effect, {name_of(algorithm)} has no gradient that is whole"
    if run.record_order and session.resumed is not None:
        yield "run.record_order: only from its start a training can be replayed: no more of this one is recorded"
    if session.device.name == "cpu" and not session.transport.runtime.simulated:
        yield from of_threads(session.transport.threads(run.threads), session.transport.cores)
    if run.matmul != "float32" and session.device.name == "cpu" and not session.config.by_torch:
        yield f"run.matmul = {run.matmul!r}: has no effect, NumPy multiplies in the dtype of the parameters on the CPU"


def of_network(network: Model) -> Iterator[str]:
    """Warn of a user's module that keeps what it has computed, such as weights, where no checkpoint finds it."""
    if network.remembers():
        keeps = "forward keeps what it has computed in an attribute, which no checkpoint holds"
        yield f"{network.name}: {keeps}: predict and a resume get other outputs; compute it in each call"


def of_threads(number: int, share: int) -> Iterator[str]:
    """Warn of more threads of a rank than its share of the cores, such as a site's OMP_NUM_THREADS, and of a NumPy
    whose threads this program does not limit to this number, and the user does not either: ranks that share cores then
    wait for each other at every layer."""
    if number > share:
        cores = some(share, "core")
        yield f"run.threads: {number} threads a rank, whose share is {cores}; run.threads={share} is faster"
    known = any(library["user_api"] == "blas" for library in threadpool_info())
    if not known and not any(os.environ.get(name) for name in THREADS[1:]):
        unknown = "has no effect on NumPy's BLAS, which threadpoolctl does not know"
        yield f"run.threads: {unknown}; set OMP_NUM_THREADS={number}"


def of_loops() -> Iterator[str]:
    """Warn of a variable, perhaps left from a search for a fault, that makes a training a hundred times as long."""
    if numba.DISABLE_JIT:  # type: ignore[attr-defined]
        yield "NUMBA_DISABLE_JIT is set: loops are not compiled"
