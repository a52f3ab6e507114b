"""`python -m mpitrain launch`: start the ranks of a training, and again from its newest checkpoint when one of them is
lost: when it died, or was silent for `run.deadline`."""

import argparse
import json
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from mpitrain.api.launching import Relay, launcher, require_no_ranks, start, training
from mpitrain.checkpoint import newest
from mpitrain.checkpoint.files import order
from mpitrain.errors import BadInput, naming
from mpitrain.monitoring.records import last_record
from mpitrain.signals import STOPPED

TRIES = 3  # starts, one after the other, that leave no new checkpoint
PAUSE = 1.0  # seconds before the next start, in which the last one's processes end


class Left(NamedTuple):
    """What a run folder holds: the text of the summary, which a lost rank leaves as it was, and the samples that the
    newest whole checkpoint has been trained on."""

    summary: str
    samples: int

    @property
    def status(self) -> int:
        """The exit status of a training that wrote this summary; a rank that is lost after that changes nothing."""
        return 0 if json.loads(self.summary).get("exit_reason") == "finished" else 1


def run(options: argparse.Namespace) -> int:
    """Train until the training ends by itself, or is stopped; its exit status, or 1 after starts without progress.

    Raises BadInput naming an option.
    """
    require_no_ranks("launch")
    if options.ranks < 1:
        raise BadInput(f"-n: at least 1 rank, not {options.ranks}")
    given = {"--out": options.out, "--resume": options.resume, "--continue": options.continued}
    how, folder = next(((name, path) for name, path in given.items() if path), ("--out", _default()))
    words = [str(options.config)] if options.config else []
    words += [word for each in options.set for word in ("--set", each)]
    flags = {"--trust": options.trust, "--new-code": options.new_code, "--print-config": options.print_config}
    words += [name for name, wanted in flags.items() if wanted]
    launch, relay, in_vain = launcher(options.launch), Relay(), 0
    with relay.listening():
        while True:
            before = _left(folder)
            status = relay.wait(start(training(launch, options.ranks, [*words, how, str(folder)])))
            after = _left(folder)
            if relay.asked or status in (0, 2, STOPPED):
                return int(status or 0)
            if after.summary != before.summary:
                return after.status
            in_vain = in_vain + 1 if after.samples <= before.samples else 0
            if in_vain == TRIES:
                print(f"mpitrain: {TRIES} starts in a row left no new checkpoint; see what they said", file=sys.stderr)
                return 1
            how = "--continue"
            _say(folder, after.samples, status)
            time.sleep(PAUSE)
            if relay.asked:
                return STOPPED


def _left(folder: Path) -> Left:
    summary, (found, _) = folder / "summary.json", newest(folder / "checkpoints")
    with naming(summary):
        text = summary.read_text(encoding="utf-8") if summary.exists() else ""
    return Left(text, int(order(found)[0]) if found else 0)


def _say(folder: Path, samples: int, status: int | None) -> None:
    """Say that the training is started again, and how much of it is trained anew."""
    reached = (last_record(folder / "metrics.jsonl", "train") or {}).get("samples")
    lost = reached - samples if isinstance(reached, int) and reached > samples else 0
    again = f"; at least {lost:,} samples are trained again" if lost else ""
    where = (f"goes on after {samples:,} samples" if samples else "begins anew: there is no checkpoint yet") + again
    print(f"mpitrain: a rank was lost (exit status {status}); the training {where}", file=sys.stderr, flush=True)


def _default() -> Path:
    return Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-launched"
