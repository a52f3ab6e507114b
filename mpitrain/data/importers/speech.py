"""`prepare speech`: a phone-aligned corpus of synthesised speech, without any download.

The parts are train, dev, test-clean and test-noisy, each with its own speakers (Zhang 2013 has a clean and a noisy test
set). The same recipe gives the same shards, whatever the number of processes.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mpitrain.console import open_plain
from mpitrain.data.importers.espeak import RATE, Voice
from mpitrain.data.importers.features import SHIFT, preparation
from mpitrain.data.importers.plan import CorpusPlan
from mpitrain.data.importers.processes import processes, unbroken
from mpitrain.data.importers.utterances import PARTS, PhoneState, SpeechRecipe, Utterance, choose, speakers, utterance
from mpitrain.data.normalising import moments, statistics
from mpitrain.data.shards import PREPARATION
from mpitrain.data.validation import Attributes
from mpitrain.data.writer import ShardWriter
from mpitrain.errors import BadInput
from mpitrain.files import claimed, writing
from mpitrain.flat import Array
from mpitrain.signals import Stop
from mpitrain.start import usable_cores

HELD_OUT = 0.1, 0.5  # length of each other part: this fraction of the training hours, at most this many hours
AHEAD = 2  # utterances that are in work or ready, per process
LOUDEST = 100  # most dB between noise and speech
SILENT = 1000  # a part is abandoned after this many utterances without speech

Make = Callable[[int], Utterance | None]


def prepare_speech(folder: Path, recipe: SpeechRecipe, hours: float, classes: int, jobs: int | None = None) -> None:
    """Write `hours` of training speech with `classes` phone states, and the held-out parts, into `folder`.

    `jobs`: number of processes, by default that of the cores. Raises BadInput for an unknown language, a missing extra,
    a folder that already holds a corpus, and too few classes.
    """
    began, console, stop, jobs = time.monotonic(), open_plain(), Stop(), jobs or usable_cores()
    if not 0 < hours < 1e5:
        raise BadInput(f"--hours {hours:g}: expected a number above 0 and below 100,000")
    if recipe.noise is not None and not abs(recipe.noise) <= LOUDEST:
        raise BadInput(f"--noise {recipe.noise:g}: expected between -{LOUDEST} and {LOUDEST} dB")
    with processes(jobs, "mpitrain.data.importers.utterances") as executor:
        utterance(recipe, "dev", 0)  # reports anything that is missing, in one line
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with claimed(folder), stop.listening(), TemporaryDirectory(dir=folder, prefix=".speaking-") as scratch:
            if any(folder.glob("[!.]*.h5")):
                raise BadInput(f"{folder}: already holds shards; delete them to start over")
            numbers: dict[PhoneState, int] = {}
            dims = recipe.bins * (3 if recipe.deltas else 1)
            spoken = {part: SpokenPart(Path(scratch) / part, dims, numbers) for part in PARTS}
            with Progress(console=console, transient=True) as bars, unbroken():
                for part in PARTS:
                    seconds = 3600 * (hours if part == "train" else min(HELD_OUT[0] * hours, HELD_OUT[1]))
                    wanted = round(seconds / SHIFT)
                    bar = bars.add_task(f"speaking {part}", total=wanted)
                    make = partial(utterance, recipe, part)
                    with closing(_in_order(executor, make, AHEAD * jobs, stop)) as utterances:
                        for frames in spoken[part].fill(utterances, wanted):
                            bars.update(bar, completed=frames)
            counts = np.bincount(np.concatenate(spoken["train"].states), minlength=len(numbers))
            classes_of, names = choose(list(numbers), counts, classes)
            attributes = CorpusPlan.described(f"espeak-ng, spoken by rule: {recipe}", len(names), names)
            attributes |= statistics([spoken["train"].moments])
            attributes[PREPARATION] = json.dumps(preparation(RATE, recipe.bins, recipe.deltas), sort_keys=True)
            for part in PARTS:
                spoken[part].write(folder, part, classes_of, attributes, speakers(recipe.seed, part))
    _report(console, spoken, len(names), len(numbers), time.monotonic() - began)
    if len(names) < classes:
        console.print(f"fewer classes than the {classes} wanted: this much speech has no more states", soft_wrap=True)


class SpokenPart:
    """The utterances of a part before its classes are known: features in the file `path`, states as their `numbers`,
    which all parts share, in order of appearance. Only states that contain a frame are added to `numbers`."""

    def __init__(self, path: Path, dims: int, numbers: dict[PhoneState, int]) -> None:
        self._path, self._dims, self._numbers = path, dims, numbers
        self._file = path.open("wb")
        self.states: list[Array] = []  #: those of the frames of each utterance
        self.speakers: list[int] = []  #: that of each utterance
        self.moments = moments(np.empty((0, dims), np.float32))
        self.frames = 0

    def fill(self, utterances: Iterator[Utterance | None], frames: int) -> Iterator[int]:
        """Add utterances until there are this many frames; yields how many there are. Raises BadInput for no speech."""
        silent = 0
        while self.frames < frames:
            if (made := next(utterances)) is not None:
                self._add(made)
                yield self.frames
            elif (silent := silent + 1) == SILENT:
                raise BadInput(f"{self._path.name}: espeak-ng said nothing {SILENT} times")

    def _add(self, spoken: Utterance) -> None:
        used, frames = np.unique(spoken.segments, return_inverse=True)
        found = [self._numbers.setdefault(spoken.states[number], len(self._numbers)) for number in used]
        self.states.append(np.array(found, np.int32)[frames])
        with writing(self._path):
            self._file.write(spoken.features.tobytes())
        self.moments = {name: np.add(self.moments[name], value) for name, value in moments(spoken.features).items()}
        self.frames += len(spoken.features)
        self.speakers.append(spoken.speaker)

    def write(self, folder: Path, part: str, classes_of: Array, attributes: Attributes, voices: list[Voice]) -> None:
        """Write the part's shards."""
        with writing(self._path):
            self._file.close()
        names = " ".join("/".join(map(str, voices[number])) for number in sorted(set(self.speakers)))
        writer = ShardWriter(folder, part, "frames", {**attributes, "speakers": names})
        with self._path.open("rb") as file:
            for states, speaker in zip(self.states, self.speakers, strict=True):
                features = np.fromfile(file, np.float32, len(states) * self._dims).reshape(-1, self._dims)
                writer.add(features, classes_of[states], speaker)
        writer.finish()


def _in_order(executor: Executor, make: Make, most: int, stop: Stop) -> Generator[Utterance | None, None, None]:
    """Yields make(0), make(1), … without end, while up to `most` of the next ones are being made. Raises
    KeyboardInterrupt when stopped."""
    under_way = deque(executor.submit(make, number) for number in range(most))
    try:
        for number in count(most):
            made = under_way.popleft().result()
            if stop.flag:
                raise KeyboardInterrupt
            yield made
            under_way.append(executor.submit(make, number))
    finally:
        for nobodys in under_way:
            nobodys.cancel()


def _report(console: Console, spoken: dict[str, SpokenPart], classes: int, states: int, seconds: float) -> None:
    table = Table("part", "hours", "utterances", "frames", "speakers", box=None, pad_edge=False)
    for part, each in spoken.items():
        hours = f"{each.frames * SHIFT / 3600:.2f}"
        table.add_row(part, hours, f"{len(each.states):,}", f"{each.frames:,}", str(len(set(each.speakers))))
    console.print(table)
    console.print(f"{classes} classes from {states:,} phone states, no speaker in two parts, {seconds:.0f} s")
