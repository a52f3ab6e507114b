"""Label files of recorded speech: one label per frame, or labelled segments of time.

A line of a frame-level file holds an utterance's key and a label for each frame; a line of a segment-level file holds
key, start, end and label, or, as in NIST's CTM, key, channel, start, duration and label, with times in seconds; what
follows there, such as a confidence, is ignored, as are its comments, lines that begin with ";;". If all labels are
integers, they are the class numbers; otherwise they are numbered in alphabetical order.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpitrain.data.importers.kaldi_archive import table
from mpitrain.errors import BadInput
from mpitrain.flat import Array

SLACK = 0.1  # a segment may begin up to this many seconds after the last frame's middle
TOUCH = 0.0101  # segments may overlap by this many seconds: CTM rounds start and duration, often to hundredths


@dataclass(frozen=True)
class UtteranceLabels:
    """An utterance's labels, int32, for each frame or for each segment from `starts` to `ends` [seconds], in order."""

    targets: Array
    starts: Array | None = None
    ends: Array | None = None

    def at(self, times: Array, background: int | None, where: str) -> Array:
        """The label at each of these times, int32, `background` between segments; frame-level labels as they are.

        Raises BadInput with `where` for a time outside all segments if there is no `background`, and for segments after
        the last time.
        """
        if self.starts is None or self.ends is None:
            return self.targets
        number = np.searchsorted(self.starts, times, "right") - 1
        inside = (number >= 0) & (times < self.ends[number])
        if len(times) and self.starts[-1] > times[-1] + SLACK:
            raise BadInput(f"{where}: a segment begins at {self.starts[-1]:g} s, the sound ends at {times[-1]:.3f} s")
        if background is None and not inside.all():
            raise BadInput(f"{where}: no segment holds {times[~inside][0]:.4f} s; --background LABEL fills gaps")
        return np.where(inside, self.targets[number], background if background is not None else 0).astype(np.int32)


def classes_of(names: list[str]) -> tuple[Array, list[str]]:
    """The class of each label, and the names of the classes unless they are integers."""
    if all(name.isascii() and name.isdigit() and len(name) < 10 for name in names):
        return np.array([int(name) for name in names], np.int32), []
    order, classes = np.unique(names, return_inverse=True)
    return classes.astype(np.int32), order.tolist()


def read_frames(path: Path, numbers: dict[str, int]) -> dict[str, UtteranceLabels]:
    """The labels of each key, by `numbers`, to which new labels are added. Raises BadInput naming the line."""
    found: dict[str, UtteranceLabels] = {}
    for number, (key, *names) in table(path):
        if key in found:
            raise BadInput(f"{path}, line {number}: {key} is there twice")
        targets = [numbers.setdefault(name, len(numbers)) for name in names]
        found[key] = UtteranceLabels(np.array(targets, np.int32))
    return found


def read_segments(path: Path, numbers: dict[str, int]) -> dict[str, UtteranceLabels]:
    """The segments of each key, labels by `numbers`, to which new ones are added. Raises BadInput naming the line."""
    rows: dict[str, list[tuple[float, float, int]]] = {}
    for number, words in table(path):
        if words[0].startswith(";;"):
            continue
        if len(words) < 4:
            raise BadInput(f"{path}, line {number}: expected a key, start, end and label, or a line of CTM")
        ctm = len(words) > 4
        begins, ends, label = words[2:5] if ctm else words[1:]
        try:
            start, end = float(begins), float(ends)
        except ValueError:
            raise BadInput(f"{path}, line {number}: {begins} and {ends} are not times in seconds") from None
        end += start if ctm else 0.0
        if not 0 <= start < end < np.inf:
            raise BadInput(f"{path}, line {number}: a segment from {start:g} to {end:g} s")
        rows.setdefault(words[0], []).append((start, end, numbers.setdefault(label, len(numbers))))
    return {key: _in_order(path, key, own) for key, own in rows.items()}


def _in_order(path: Path, key: str, rows: list[tuple[float, float, int]]) -> UtteranceLabels:
    starts, ends, targets = (np.array(column) for column in zip(*sorted(rows), strict=True))
    if (late := np.flatnonzero(ends[:-1] > starts[1:] + TOUCH)).size:
        raise BadInput(f"{path}: segments of {key} overlap at {starts[late[0] + 1]:g} s")
    return UtteranceLabels(targets.astype(np.int32), starts, ends)
