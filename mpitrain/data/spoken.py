"""A part before its classes are known: features in a temporary file, states numbered in order of appearance."""

from pathlib import Path

import numpy as np

from mpitrain.data.espeak import Voice
from mpitrain.data.labels import Numbering
from mpitrain.data.phone_states import PhoneState
from mpitrain.data.utterances import Utterance
from mpitrain.data.validation import Attributes
from mpitrain.data.writer import ShardWriter
from mpitrain.files import writing
from mpitrain.flat import Array


class Spoken:
    """The utterances of a part, with their features in a temporary file."""

    def __init__(self, path: Path, dims: int) -> None:
        self._path, self._dims = path, dims
        self._file = path.open("wb")
        self._states: list[Array] = []
        self._speakers: list[int] = []
        self._sum, self._squares = np.zeros(dims), np.zeros(dims)
        self.frames = 0

    def add(self, spoken: Utterance, numbering: Numbering[PhoneState]) -> None:
        """Add an utterance. Only states that contain a frame are numbered."""
        used, frames = np.unique(spoken.segments, return_inverse=True)
        numbers = np.array([numbering.number(spoken.states[number]) for number in used], np.int32)
        self._states.append(numbers[frames])
        with writing(self._path):
            self._file.write(spoken.features.tobytes())
        wide = spoken.features.astype(np.float64)
        self._sum += wide.sum(0)
        self._squares += (wide * wide).sum(0)
        self.frames += len(wide)
        self._speakers.append(spoken.speaker)

    @property
    def heard(self) -> set[int]:
        """The speakers of the utterances so far."""
        return set(self._speakers)

    @property
    def utterances(self) -> int:
        """Number of utterances."""
        return len(self._states)

    def states(self) -> Array:
        """The state of each frame."""
        return np.concatenate(self._states)

    def normalisation(self) -> dict[str, Array]:
        """Mean and standard deviation of each feature."""
        mean = self._sum / self.frames
        deviation = np.sqrt(np.maximum(self._squares / self.frames - mean * mean, 1e-8))
        return {"mean": mean.astype(np.float32), "standard_deviation": deviation.astype(np.float32)}

    def write(
        self, folder: Path, part: str, classes_of: Array, attributes: Attributes, voices: list[Voice], limit: int
    ) -> None:
        """Write the part's shards."""
        with writing(self._path):
            self._file.close()
        names = " ".join("/".join(map(str, voices[number])) for number in sorted(self.heard))
        writer = ShardWriter(folder, part, "frames", {**attributes, "speakers": names}, limit=limit)
        with self._path.open("rb") as file:
            for states, speaker in zip(self._states, self._speakers, strict=True):
                features = np.fromfile(file, np.float32, len(states) * self._dims).reshape(-1, self._dims)
                writer.add(features, classes_of[states], speaker)
        writer.finish()
