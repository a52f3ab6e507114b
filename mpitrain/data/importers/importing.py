"""Carry out an import in several processes and ranks. After an interruption it continues with the missing shards.

The files of the source are read once to tell whether existing shards were made from the present content of the files.
Every chunk of the source becomes a shard under a provisional name. When all shards are written, the attributes that
depend on the whole corpus are added to each in place, and then they get their final names, so that nobody ever sees an
incomplete corpus.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from rich.progress import Progress

from mpitrain.console import open_console
from mpitrain.data.check import Figures, figures, lines_of_classes, row, table_of_parts
from mpitrain.data.importers.plan import CorpusPlan, Task, digest_extents, portions
from mpitrain.data.importers.processes import processes, unbroken
from mpitrain.data.normalising import MOMENTS, STATISTICS, statistics
from mpitrain.data.reader import ShardFile
from mpitrain.data.shards import PREPARATION, publish, require_own, set_attributes
from mpitrain.data.validation import LEFT_OUT, Attributes, Value, validate_range
from mpitrain.errors import BadInput, printable
from mpitrain.files import Version, claimed, writing
from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import agreed, by_all_ranks
from mpitrain.signals import Stop
from mpitrain.stopwatch import PLAIN_EVERY

Result = TypeVar("Result")
TICK = 0.25  # seconds between two checks of the progress of other processes and ranks


def run(options: argparse.Namespace) -> int:
    """Import on all ranks what `options.planning` plans; return the exit status."""
    stop = Stop()
    stop.install()
    plan = partial(options.planning, options)
    return by_all_ranks(lambda transport: Importing(transport, options.folder, options.jobs, stop).run(plan))


class Importing:
    """One rank's part of an import into `folder`, in `jobs` processes; by default as many as its share of cores.

    `stop` says whether a signal has requested a stop; shards that were begun are finished first.
    """

    def __init__(self, transport: Transport, folder: Path, jobs: int | None = None, stop: Stop | None = None) -> None:
        self.transport, self.folder, self._stop = transport, folder, stop or Stop()
        self.jobs = jobs or transport.cores
        self.console = open_console(live=transport.rank == 0, quiet=transport.rank > 0)
        self._said = time.monotonic()
        transport.yielding = 0.0  # leave the cores to the processes that do the work

    def run(self, planning: Callable[[], CorpusPlan]) -> int:
        """Make the shards of a plan; return the exit status. Collective: every rank makes the same plan.

        Raises BadInput naming the source, or the folder that holds other shards.
        """
        try:
            with ExitStack() as claim:
                return self._run(planning, claim)
        except KeyboardInterrupt:
            self.console.print("the same command goes on from here")
            return 130

    def _run(self, planning: Callable[[], CorpusPlan], claim: ExitStack) -> int:
        began = time.monotonic()
        with processes(self.jobs, "mpitrain.data.importers.plan") as executor:
            plan = self._agreed(planning, "the plan")
            versions = self._agreed(plan.versions, "the look at the source")
            self._agreed(lambda: self._claim(claim), "the folder")
            tasks = plan.tasks(self.folder, self._digests(versions, executor), versions)
            missing = self._agreed(lambda: self._missing(tasks), "the look at the folder")
            if missing:
                if len(missing) < len(tasks):
                    self.console.print(
                        f"going on: {len(tasks) - len(missing)} of {len(tasks)} shards are there already"
                    )
                self._share_out([task.run for task in missing], f"importing {plan.attributes['source']}", executor)
            common, found, broken = self._agreed(lambda: _surveyed(plan, tasks), "the statistics")
            self._agreed(lambda: self._tell_broken(plan, broken, found), "the broken files")
            unnamed = [task for task in tasks if not task.final.exists()]
            changes = {**dict.fromkeys(MOMENTS), **common}
            finishing = [partial(set_attributes, task.provisional, changes) for task in unnamed]
            self._share_out(finishing, "finishing", executor)
        naming = partial(publish, self.folder, {part: len(chunks) for part, chunks in plan.chunks.items()})
        self._agreed(naming if self.transport.rank == 0 else lambda: None, "the shards' names")
        table = table_of_parts()
        for part, shards in found.items():
            table.add_row(part, str(len(shards)), *row(shards))
        self.console.print(table)
        lines = [line for part, shards in found.items() for line in lines_of_classes(part, shards)]
        for line in (*lines, *plan.notes, f"{plan.attributes['source']}, {time.monotonic() - began:.1f} s"):
            self.console.print(printable(line), soft_wrap=True, markup=False)
        return 0

    def _tell_broken(self, plan: CorpusPlan, broken: list[str], found: dict[str, list[Figures]]) -> None:
        """Print which files cannot be read. Raises BadInput unless they may be left out, and for a part without a
        readable file."""
        for line in broken if plan.skip_broken or len(broken) > 1 else ():
            said = "left out" if plan.skip_broken else "broken"
            self.console.print(f"{said}: {line}", soft_wrap=True, markup=False)
        if broken and not plan.skip_broken:
            more = f" (and {len(broken) - 1} more, named above)" if len(broken) > 1 else ""
            raise BadInput(f"{broken[0]}{more}; --skip-broken leaves such files out")
        if empty := next((part for part, shards in found.items() if not any(own.samples for own in shards)), None):
            raise BadInput(f"{plan.attributes['source']}: no file of part {empty} can be read")

    def _digests(self, files: dict[Path, Version], executor: Executor) -> list[str]:
        """The digests of all portions of the files, each computed by one process of one rank."""
        every = portions(files)
        actions = [partial(digest_extents, portion) for portion in every]
        mine = self._share_out(actions, "reading the source", executor, "portions")
        digests = [""] * len(every)
        for rank, texts in enumerate(self.transport.gather_texts(" ".join(mine), "the digests of the source")):
            digests[rank :: self.transport.size] = texts.split()
        return digests

    def _claim(self, claim: ExitStack) -> None:
        """Make the folder; rank 0 keeps other imports out of it. Raises BadInput naming it."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        if self.transport.rank == 0:
            claim.enter_context(claimed(self.folder))

    def _missing(self, tasks: list[Task]) -> list[Task]:
        """The tasks whose shards do not exist yet. Raises BadInput if the folder holds shards of another corpus, or
        damaged ones."""
        wanted = {task.final: task for task in tasks}

        def is_own(path: Path) -> bool:
            try:
                return path in wanted and wanted[path].owns(path)
            except BadInput as damage:
                raise BadInput(f"{damage}; delete it, and the same command makes it anew") from damage

        require_own(self.folder, is_own)
        return [task for task in tasks if not task.final.exists() and not task.done(task.provisional)]

    def _share_out(
        self, actions: Sequence[Callable[[], Result]], what: str, executor: Executor, pieces: str = "shards"
    ) -> list[Result]:
        """Carry out the actions, divided among all ranks' processes; return the results of this rank's actions."""
        mine = actions[self.transport.rank :: self.transport.size]
        with Progress(console=self.console, transient=True, disable=not self.console.is_terminal) as bars:
            bar = bars.add_task(what, total=len(actions))
            submitted = [_submitted(executor, action) for action in mine]
            waiting = set(submitted)
            try:
                while (done := self._look(waiting, len(mine))) < len(actions):
                    bars.update(bar, completed=done)
                    self._say(f"{what}: {done} of {len(actions)} {pieces}")
            except BaseException as error:
                for future in waiting:
                    future.cancel()
                if isinstance(error, KeyboardInterrupt):
                    self.console.print(f"interrupted: finishing the {pieces} under way")
                raise
        return [future.result() for future in submitted]

    def _look(self, waiting: "set[Future[Result]]", mine: int) -> int:
        """Wait, then count the actions that are done. Raises BadInput if one failed, KeyboardInterrupt when stopped."""
        fault: BaseException | None = None
        if waiting:
            finished, _ = wait(waiting, TICK)
            waiting -= finished
            fault = next((error for future in finished if (error := future.exception())), None)
        elif self.transport.size > 1:
            self.transport.sleep(TICK)
        if fault is not None and not isinstance(fault, BadInput | BrokenProcessPool):
            raise fault
        counts = np.array([mine - len(waiting), int(fault is not None), int(self._stop.flag)])
        self.transport.sum(counts, "the other ranks of the import")
        if counts[1]:
            self._agreed(partial(_raise, fault), "the fault")
        if counts[2]:
            raise KeyboardInterrupt
        return int(counts[0])

    def _say(self, text: str) -> None:
        """Print a plain line every PLAIN_EVERY seconds if there is no live line."""
        if not self.console.is_terminal and time.monotonic() - self._said > PLAIN_EVERY:
            self._said = time.monotonic()
            self.console.print(text, soft_wrap=True)

    def _agreed(self, action: Callable[[], Result], what: str) -> Result:
        return agreed(self.transport, action, what)


def _surveyed(plan: CorpusPlan, tasks: list[Task]) -> tuple[dict[str, Value], dict[str, list[Figures]], list[str]]:
    """The attributes that depend on the whole corpus, from those of its shards; the shards' figures by part; and a line
    for every file of the source that they leave out."""
    source, found = plan.attributes["source"], list[tuple[str, Figures, Attributes]]()
    for task in tasks:
        with ShardFile(task.final if task.final.exists() else task.provisional) as file:
            found.append((task.part, figures(file), file.attributes))
        (first, own, _), (part, other, _) = found[0], found[-1]
        if own.shape != other.shape:
            raise BadInput(f"{source}: inputs of {own.shape} in {first} and {other.shape} in {part}")
    classes = max(own.classes for _, own, _ in found)
    by_part = {part: [own._replace(classes=classes) for its, own, _ in found if its == part] for part in plan.chunks}
    common: dict[str, Value] = {"classes": classes}
    if plan.preparation:
        common[PREPARATION] = json.dumps(plan.preparation, sort_keys=True)
    if plan.kind != "tokens" and any(own.samples for own in by_part.get("train", ())):
        validate_range(source, classes, sum(own.samples for own in by_part["train"]))
        # an import that was interrupted after the statistics were complete has them in some of its shards
        known = next((attributes for _, _, attributes in found if "mean" in attributes), None)
        known = known or statistics(attributes for part, _, attributes in found if part == "train")
        common |= {name: known[name] for name in STATISTICS if name in known}
    return common, by_part, [line for *_, each in found for line in str(each.get(LEFT_OUT, "")).splitlines()]


def _submitted(executor: Executor, action: Callable[[], Result]) -> "Future[Result]":
    """Submit an action; return its future, which has failed if a process of the executor has died before."""
    try:
        return executor.submit(action)
    except BrokenProcessPool as error:
        failed: Future[Result] = Future()
        failed.set_exception(error)
        return failed


def _raise(fault: BaseException | None) -> None:
    if fault is not None:
        with unbroken():
            raise fault
