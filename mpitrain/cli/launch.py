"""`python -m mpitrain launch`: start the ranks of a training, and start them again from its newest checkpoint when one
of them is lost: when it died, was silent for `run.deadline`, or was on a node that no longer answers."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from mpitrain import config as configuration
from mpitrain.api.launching import (
    OVERLAPPING,
    PROGRAM,
    Heard,
    Nodes,
    Relay,
    answering,
    launcher,
    nodes_of,
    on_nodes,
    on_ranks,
    start,
)
from mpitrain.checkpoint import CONFIG, newest
from mpitrain.checkpoint.files import MANIFEST, order
from mpitrain.errors import BadInput, named, naming, say, some
from mpitrain.files import Record, make_numbered
from mpitrain.monitoring.records import record_in, records_of
from mpitrain.monitoring.restarts import restarted
from mpitrain.signals import STATUS, STOPPED

TRIES = 3  # starts in a row that leave no new checkpoint, after which no more follow
PAUSE = 2.0  # seconds for the ranks of a start to end after their launcher; five times as long after each one in vain
#: Unblocks SIGTERM, which `start` has blocked, and runs the user's program, which may end its own processes by it.
UNBLOCKED = (
    "import os, signal, sys; signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM}); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


class Launched:
    """What is started: a training with its run folder, or the user's `own` program with the folder of `ranks.save`."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Raises BadInput for words that only the other of these two takes, and, if the configuration is to name the
        run folder, for errors in it."""
        self._options, self._made, self._read, self._events = options, False, 0, list[object]()
        self.own = options.config is not None and options.config.suffix == ".py"
        if (options.words and not self.own) or (self.own and (options.set or not options.continued)):
            raise BadInput("launch: a program of your own is started as launch -n 4 --continue DIR -- PROGRAM.py WORDS")
        given = {"--out": options.out, "--resume": options.resume, "--continue": options.continued}
        self._how, folder = next(((name, path) for name, path in given.items() if path), ("--continue", None))
        if folder is None:
            folder = configuration.load(options.config, list(options.set)).new_folder()
            if not options.print_config:  # made at once, so that no other run takes the name
                folder, self._made = make_numbered(folder, parents=True), True
        self.folder: Path = folder
        self._metrics = self.folder / "metrics.jsonl"

    def close(self) -> None:
        """Remove the run folder if it was made here and nothing was written there."""
        if self._made:
            with suppress(OSError):
                self.folder.rmdir()

    def words(self) -> list[str]:
        """The command line of the next start."""
        options, how, self._how = self._options, self._how, "--continue"
        self._recorded()
        self._events.clear()
        if self.own:
            return [sys.executable, "-c", UNBLOCKED, str(options.config), *options.words]
        words = [str(options.config)] if options.config else []
        words += [word for each in options.set for word in ("--set", each)]
        flags = {"--trust": options.trust, "--new-code": options.new_code, "--print-config": options.print_config}
        words += [name for name, wanted in flags.items() if wanted]
        return [*PROGRAM, "train", *words, how, str(self.folder)]

    def left(self) -> tuple[str, int]:
        """What the folder holds now: the text of the summary, which a start that loses a rank leaves as it was, and how
        many samples the newest whole checkpoint has been trained on. For a program of the user's own, no summary, and
        the save's time in place of samples."""
        if self.own:
            with suppress(OSError):
                return "", (self.folder / MANIFEST).stat().st_mtime_ns
            return "", 0
        summary, (found, _) = self.folder / "summary.json", newest(self.folder / "checkpoints")
        with naming(summary):
            text = summary.read_text(encoding="utf-8") if summary.exists() else ""
        return text, int(order(found)[0]) if found else 0

    def least(self) -> int:
        """run.least_ranks; 1 for a program of the user's own. Raises BadInput for errors in the configuration."""
        if self.own:
            return 1
        found, _ = newest(self.folder / "checkpoints")
        path = found / CONFIG if found else self._options.config
        return configuration.load(path, list(self._options.set), found is not None).run.least_ranks

    def failed(self) -> bool:
        """Whether a rank has recorded since this start that the training failed: then the ranks have only to end."""
        return "failed" in self._recorded()

    def ended(self) -> bool:
        """Whether this start has recorded its end, or need not. A status of 0 is not enough: Open MPI's launcher with
        ULFM ends with it even if all ranks that trained have died."""
        return self.own or self._options.print_config or "end" in self._recorded()

    def gone(self) -> bool:
        """Whether the run folder was moved or deleted since this start has recorded something there."""
        return bool(self._recorded()) and not self.folder.exists()

    def restart(self, status: int | None, lost: list[int], samples: int) -> None:
        """Say and record that the training starts again from a checkpoint of this many samples, and how many later
        samples are trained on a second time."""
        if self.own:
            say(f"{named(lost) if lost else 'a rank'} was lost (exit status {status})")
            return
        failed: Record = next(records_of(self._metrics, "failed"), {}) if self.failed() else {}
        told = failed.get("silent")
        restarted(self._metrics, told if isinstance(told, list) and told else lost, f"exit status {status}", samples)

    def _recorded(self) -> list[object]:
        """The events that this start has recorded so far."""
        with suppress(OSError), self._metrics.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._read:  # this start has begun anew
                self._read = 0
            file.seek(self._read)
            for line in file:
                if line.endswith(b"\n"):  # else it is being written
                    self._read += len(line)
                    self._events += [record["event"]] if (record := record_in(line)) else []
        return self._events


def run(options: argparse.Namespace) -> int:
    """Train until the training ends by itself, or is stopped. Returns its exit status; 1 after starts without progress;
    75 if too few ranks are left.

    Raises BadInput naming an option.
    """
    launch, nodes = launcher(options.launch), _nodes(options)
    relay, in_vain = Relay(), 0
    with relay.listening(), closing(Launched(options)) as work:
        while True:
            there = answering(launch, nodes)
            ranks = _ranks(options.ranks, nodes, there, work.least)
            if relay.asked or not ranks:
                return STOPPED
            chosen = options.hosts or there != nodes
            before, trained = work.left()
            words = on_ranks(on_nodes(launch, there) if chosen else launch, ranks, work.words())
            process = start([*OVERLAPPING, *words] if chosen else words, errors=subprocess.PIPE)
            heard = Heard(process)
            status = relay.wait(process, over=work.failed)
            (summary, _), lost = work.left(), heard.lost("--het-group" in launch)
            if status == 2 and ranks < options.ranks:  # such as too few for a stage
                say(f"it does not train on {some(ranks, 'rank')}")
                return STOPPED
            over = _over(work, relay, status, "" if summary == before else summary)
            if over is not None:
                return over
            relay.pause(PAUSE)  # ranks of nodes that are left may write a checkpoint now
            _, samples = work.left()
            in_vain = in_vain + 1 if samples <= trained else 0
            if in_vain == TRIES:
                why = f"the last one ended with {status}; see what they said"
                say(f"{TRIES} starts in a row left no new checkpoint; {why}")
                return 1
            work.restart(status, lost, samples)
            relay.pause(PAUSE * (5**in_vain - 1))


def _over(work: Launched, relay: Relay, status: int | None, summary: str) -> int | None:
    """The status to end with after a start that ended with this one and has written this summary, or none: ""; None if
    a rank was lost."""
    if status in (2, STOPPED):
        return status
    if work.gone():  # the ranks have said where their last checkpoint is
        return 1
    if summary:  # a rank that was lost after that changes nothing, nor does what the launcher says
        return STATUS.get(json.loads(summary).get("exit_reason"), 1)
    if status == 0 and work.ended():
        return 0
    return STOPPED if relay.asked else None  # a rank was lost, too, or the signal ended a program of the user's own


def _nodes(options: argparse.Namespace) -> Nodes:
    """The nodes that there are, as far as that is known. Raises BadInput naming an option if the ranks have no room."""
    if options.ranks < 1:
        raise BadInput(f"-n: at least 1 rank, not {options.ranks}")
    nodes = nodes_of(options.hosts)
    if options.hosts and options.ranks > (places := sum(nodes.values())):
        raise BadInput(f"--hosts {options.hosts}: room for {some(places, 'rank')}, not for {options.ranks}")
    return nodes


def _ranks(wanted: int, nodes: Nodes, there: Nodes, least: Callable[[], int]) -> int:
    """How many ranks to start if only the nodes `there` answer; 0 if that is less than run.least_ranks. Says why."""
    if there == nodes:
        return wanted
    ranks, gone = min(wanted, sum(there.values())), ", ".join(name for name in nodes if name not in there)
    line = f"no answer from {gone}: left out; {ranks} of {some(wanted, 'rank')} can be started"
    if few := ranks < min(wanted, needed := least()):
        line += f"; run.least_ranks is {needed}; the next launch goes on"
    say(line)
    return 0 if few else ranks
