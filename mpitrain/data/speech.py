"""`prepare speech`: a phone-aligned corpus of synthesised speech, without any download.

The parts are train, dev, test-clean and test-noisy, each with its own speakers (Zhang 2013 has a clean and a noisy test
set). The same recipe gives the same shards, whatever the number of processes.
"""

import os
import tempfile
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mpitrain.data.described import NAMES, PREPARATION, named, prepared
from mpitrain.data.espeak import RATE
from mpitrain.data.features import SHIFT, preparation
from mpitrain.data.labels import Numbering
from mpitrain.data.phone_states import PhoneState, choose
from mpitrain.data.processes import processes, unbroken
from mpitrain.data.spoken import Spoken
from mpitrain.data.utterances import PARTS, SpeechRecipe, Utterance, speakers, utterance
from mpitrain.data.validation import Value
from mpitrain.data.writer import LIMIT
from mpitrain.errors import BadInput
from mpitrain.files import writing

HELD_OUT = 0.1, 0.5  # length of each other part as a fraction of the training hours, and at most in hours
AHEAD = 4  # utterances that are in work or ready, per process
SILENT = 1000  # a part is abandoned after this many utterances without speech
SECONDS_EACH = 4.5  # approximate length of an utterance

Make = Callable[[int], Utterance | None]


def prepare_speech(
    folder: Path,
    recipe: SpeechRecipe,
    hours: float = 1.0,
    classes: int = 1998,
    jobs: int | None = None,
    limit: int = LIMIT,
) -> None:
    """Write `hours` of training speech with `classes` phone states, and the held-out parts, into `folder`.

    `jobs`: number of processes, by default that of the cores; `limit`: bytes of features in a shard. Raises BadInput
    for an unknown language, a missing extra, a folder that already holds a corpus, and too few classes.
    """
    began, console, jobs = time.monotonic(), Console(), jobs or len(os.sched_getaffinity(0))
    if not 0 < hours < 1e5:
        raise BadInput(f"--hours {hours:g}: expected a positive number")
    with processes(jobs, "mpitrain.data.utterances") as executor:
        utterance(recipe, "dev", 0)  # reports anything that is missing, in one line
        _make_room(folder)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".speaking-") as scratch:
            table = Numbering[PhoneState]()
            spoken = {part: Spoken(Path(scratch) / part, recipe.dims) for part in PARTS}
            with Progress(console=console, transient=True) as bars, unbroken():
                for part in PARTS:
                    seconds = 3600 * (hours if part == "train" else min(HELD_OUT[0] * hours, HELD_OUT[1]))
                    _speak(spoken[part], table, executor, partial(utterance, recipe, part), seconds, bars, part, jobs)
            counts = np.bincount(spoken["train"].states(), minlength=len(table.names))
            classes_of, names = choose(table.names, counts, classes)
            attributes = _attributes(recipe, names, spoken["train"])
            for part in PARTS:
                spoken[part].write(folder, part, classes_of, attributes, speakers(recipe.seed, part), limit)
    _report(console, spoken, len(names), len(table.names), time.monotonic() - began)
    if len(names) < classes:
        console.print(f"fewer classes than the {classes} wanted: this much speech has no more states", soft_wrap=True)


def _speak(
    spoken: Spoken,
    table: Numbering[PhoneState],
    executor: Executor,
    make: Make,
    seconds: float,
    bars: Progress,
    part: str,
    jobs: int,
) -> None:
    """Fill a part up to its length. Utterances are added in order, while later ones are already being synthesised."""
    wanted, numbers = round(seconds / SHIFT), count()
    bar = bars.add_task(f"speaking {part}", total=wanted)
    under_way: deque[Future[Utterance | None]] = deque()
    silent = 0
    while spoken.frames < wanted:
        expected = round((wanted - spoken.frames) * SHIFT / SECONDS_EACH)
        while len(under_way) < min(max(expected, jobs), AHEAD * jobs):
            under_way.append(executor.submit(make, next(numbers)))
        made = under_way.popleft().result()
        if made is not None:
            spoken.add(made, table)
            bars.update(bar, completed=spoken.frames)
        elif (silent := silent + 1) == SILENT:
            raise BadInput(f"{part}: espeak-ng said nothing {SILENT} times")
    for nobodys in under_way:
        nobodys.cancel()


def _make_room(folder: Path) -> None:
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob("[!.]*.h5")):
        raise BadInput(f"{folder}: already holds shards; delete them to start over")


def _attributes(recipe: SpeechRecipe, names: list[str], train: Spoken) -> dict[str, Value]:
    return {
        "classes": len(names),
        NAMES: named(names),
        PREPARATION: prepared(preparation(RATE, recipe.bins, recipe.deltas)),
        **train.normalisation(),
        "source": f"espeak-ng, spoken by rule: {recipe}",
    }


def _report(console: Console, spoken: dict[str, Spoken], classes: int, states: int, seconds: float) -> None:
    table = Table("part", "hours", "utterances", "frames", "speakers", box=None, pad_edge=False)
    for part, each in spoken.items():
        hours = f"{each.frames * SHIFT / 3600:.2f}"
        table.add_row(part, hours, f"{each.utterances:,}", f"{each.frames:,}", str(len(each.heard)))
    console.print(table)
    console.print(f"{classes} classes from {states:,} phone states, no speaker in two parts, {seconds:.0f} s")
