"""`prepare speech`: a phone-aligned corpus of synthesised speech, without any download.

The parts are train, dev, test-clean and test-noisy, each with its own speakers (Zhang 2013 has a clean and a noisy test
set). The same recipe gives the same shards, whatever the number of processes.
"""

import json
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

from mpitrain.data.importers.espeak import RATE, Voice
from mpitrain.data.importers.features import SHIFT, preparation
from mpitrain.data.importers.processes import processes, unbroken
from mpitrain.data.importers.utterances import PARTS, PhoneState, SpeechRecipe, Utterance, choose, speakers, utterance
from mpitrain.data.normalising import moments, statistics
from mpitrain.data.shards import NAMES, PREPARATION
from mpitrain.data.validation import Attributes, Value
from mpitrain.data.writer import LIMIT, ShardWriter
from mpitrain.errors import BadInput
from mpitrain.files import writing
from mpitrain.flat import Array

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
    with processes(jobs, "mpitrain.data.importers.utterances") as executor:
        utterance(recipe, "dev", 0)  # reports anything that is missing, in one line
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        if any(folder.glob("[!.]*.h5")):
            raise BadInput(f"{folder}: already holds shards; delete them to start over")
        with tempfile.TemporaryDirectory(dir=folder, prefix=".speaking-") as scratch:
            numbers: dict[PhoneState, int] = {}
            spoken = {part: SpokenPart(Path(scratch) / part, recipe.dims) for part in PARTS}
            with Progress(console=console, transient=True) as bars, unbroken():
                for part in PARTS:
                    seconds = 3600 * (hours if part == "train" else min(HELD_OUT[0] * hours, HELD_OUT[1]))
                    _speak(spoken[part], numbers, executor, partial(utterance, recipe, part), seconds, bars, part, jobs)
            counts = np.bincount(np.concatenate(spoken["train"].states), minlength=len(numbers))
            classes_of, names = choose(list(numbers), counts, classes)
            attributes: dict[str, Value] = {
                "classes": len(names),
                NAMES: " ".join(names),
                PREPARATION: json.dumps(preparation(RATE, recipe.bins, recipe.deltas), sort_keys=True),
                **statistics([spoken["train"].moments]),
                "source": f"espeak-ng, spoken by rule: {recipe}",
            }
            for part in PARTS:
                spoken[part].write(folder, part, classes_of, attributes, speakers(recipe.seed, part), limit)
    _report(console, spoken, len(names), len(numbers), time.monotonic() - began)
    if len(names) < classes:
        console.print(f"fewer classes than the {classes} wanted: this much speech has no more states", soft_wrap=True)


class SpokenPart:
    """The utterances of a part before its classes are known: features in a file, states in order of appearance."""

    def __init__(self, path: Path, dims: int) -> None:
        self._path, self._dims = path, dims
        self._file = path.open("wb")
        self.states: list[Array] = []  #: those of the frames of each utterance
        self.speakers: list[int] = []  #: that of each utterance
        self.moments = moments(np.empty((0, dims), np.float32))
        self.frames = 0

    def add(self, spoken: Utterance, numbers: dict[PhoneState, int]) -> None:
        """Add an utterance. Only states that contain a frame are added to `numbers`."""
        used, frames = np.unique(spoken.segments, return_inverse=True)
        found = [numbers.setdefault(spoken.states[number], len(numbers)) for number in used]
        self.states.append(np.array(found, np.int32)[frames])
        with writing(self._path):
            self._file.write(spoken.features.tobytes())
        self.moments = {name: np.add(self.moments[name], value) for name, value in moments(spoken.features).items()}
        self.frames += len(spoken.features)
        self.speakers.append(spoken.speaker)

    def write(
        self, folder: Path, part: str, classes_of: Array, attributes: Attributes, voices: list[Voice], limit: int
    ) -> None:
        """Write the part's shards."""
        with writing(self._path):
            self._file.close()
        names = " ".join("/".join(map(str, voices[number])) for number in sorted(set(self.speakers)))
        writer = ShardWriter(folder, part, "frames", {**attributes, "speakers": names}, limit=limit)
        with self._path.open("rb") as file:
            for states, speaker in zip(self.states, self.speakers, strict=True):
                features = np.fromfile(file, np.float32, len(states) * self._dims).reshape(-1, self._dims)
                writer.add(features, classes_of[states], speaker)
        writer.finish()


def _speak(
    spoken: SpokenPart,
    numbers: dict[PhoneState, int],
    executor: Executor,
    make: Make,
    seconds: float,
    bars: Progress,
    part: str,
    jobs: int,
) -> None:
    """Fill a part up to its length. Utterances are added in order, while later ones are already being synthesised."""
    wanted, places = round(seconds / SHIFT), count()
    bar = bars.add_task(f"speaking {part}", total=wanted)
    under_way: deque[Future[Utterance | None]] = deque()
    silent = 0
    while spoken.frames < wanted:
        expected = round((wanted - spoken.frames) * SHIFT / SECONDS_EACH)
        while len(under_way) < min(max(expected, jobs), AHEAD * jobs):
            under_way.append(executor.submit(make, next(places)))
        made = under_way.popleft().result()
        if made is not None:
            spoken.add(made, numbers)
            bars.update(bar, completed=spoken.frames)
        elif (silent := silent + 1) == SILENT:
            raise BadInput(f"{part}: espeak-ng said nothing {SILENT} times")
    for nobodys in under_way:
        nobodys.cancel()


def _report(console: Console, spoken: dict[str, SpokenPart], classes: int, states: int, seconds: float) -> None:
    table = Table("part", "hours", "utterances", "frames", "speakers", box=None, pad_edge=False)
    for part, each in spoken.items():
        hours = f"{each.frames * SHIFT / 3600:.2f}"
        table.add_row(part, hours, f"{len(each.states):,}", f"{each.frames:,}", str(len(set(each.speakers))))
    console.print(table)
    console.print(f"{classes} classes from {states:,} phone states, no speaker in two parts, {seconds:.0f} s")
