"""Synthetic utterances: a speaker, a sentence, its features and the phone state of each frame.

States are the begin, middle and end of each phone in its left context. Classes are states, with rare ones merged.

Utterance k of a part is a pure function of the recipe, the part and k, whichever process makes it.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mpitrain.data.importers.espeak import PAUSE, RATE, Speech, Voice, speak
from mpitrain.data.importers.features import frame_centres, log_mel
from mpitrain.data.importers.sentences import sentence
from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.sampling.rng import stream

PARTS = ("train", "dev", "test-clean", "test-noisy")
HELD_OUT_VARIANTS = 4  # voice variants in each part but train
SETTINGS = 4  # speakers per variant, each with a pitch, range and rate of its own
MICROPHONE = 2.0  # standard deviation of the noise of every recording, in units of int16
NOISY = 10.0  # SNR in dB of the noisy test set if the training data are clean
#: espeak-ng's voice variants that sound like people.
VARIANTS = """
    f1 f2 f3 f4 f5 m1 m2 m3 m4 m5 m6 m7 m8 Alicia Andrea Andy Annie Denis Jacky Lee Marco Mario Michael Mike adam
    anika antonio aunty belinda benjamin boris caleb david ed edward gustave ian iven iven2 iven3 iven4 john klatt
    klatt2 klatt3 linda max michel miguel norbert pablo paul pedro quincy rob robert sandro shelby steph steph2
    steph3 travis victor
""".split()  # noqa: SIM905
THIRDS = ("begin", "middle", "end")


@dataclass(frozen=True)
class SpeechRecipe:
    """What to synthesise, and its features. `noise`: least SNR in dB of half of the training utterances, or None."""

    language: str = "bn"
    bins: int = 23
    deltas: bool = False
    noise: float | None = None
    seed: int = 1


class PhoneState(NamedTuple):
    """One third of a phone in the context of the phone to its left; `left` is "" in merged classes."""

    left: str
    phone: str
    third: int

    def __str__(self) -> str:
        return f"{self.left + '-' if self.left else ''}{self.phone}.{THIRDS[self.third]}"


class Utterance(NamedTuple):
    """`features` float32 [frames, dims]; frame t is in states[segments[t]]."""

    speaker: int
    features: Array
    states: list[PhoneState]
    segments: Array


def speakers(seed: int, part: str) -> list[Voice]:
    """The speakers of a part. No voice variant is in two parts."""
    variants = [VARIANTS[number] for number in stream(seed, "variants").permutation(len(VARIANTS))]
    held_out = (len(PARTS) - 1) * HELD_OUT_VARIANTS
    first = (PARTS.index(part) - 1) * HELD_OUT_VARIANTS
    mine = variants[held_out:] if part == "train" else variants[first : first + HELD_OUT_VARIANTS]
    rng = stream(seed, "speakers", PARTS.index(part))
    return [
        Voice(variant, int(rng.integers(20, 80)), int(rng.integers(30, 80)), int(rng.integers(130, 221)))
        for variant in mine
        for _ in range(SETTINGS)
    ]


def utterance(recipe: SpeechRecipe, part: str, number: int) -> Utterance | None:
    """Synthesise utterance `number` of a part; None if espeak-ng finds nothing to say. Raises BadInput like `speak`."""
    rng = stream(recipe.seed, "utterance", PARTS.index(part), number)
    voices = speakers(recipe.seed, part)
    speaker = int(rng.integers(len(voices)))
    speech = speak(recipe.language, voices[speaker], sentence(recipe.language, rng))
    if not len(speech.samples):
        return None
    speech = _between_silences(speech, rng)
    signal = speech.samples + _noise(speech.samples, _snr(recipe, part, rng), rng)
    features = log_mel(signal, RATE, recipe.bins, recipe.deltas)
    states, segments = align(speech.phones, speech.starts, len(signal), frame_centres(len(signal), RATE))
    return Utterance(speaker, features, states, segments)


def _between_silences(speech: Speech, rng: np.random.Generator) -> Speech:
    """Add a tenth to a third of a second of silence on either side."""
    before, after = (int(RATE * seconds) for seconds in rng.uniform(0.1, 0.33, 2))
    silent_start = speech.phones[0] == PAUSE
    phones = [PAUSE, *speech.phones[silent_start:]]
    starts = np.concatenate([[0], speech.starts[silent_start:] + before])
    if phones[-1] != PAUSE:
        phones.append(PAUSE)
        starts = np.append(starts, before + len(speech.samples))
    return Speech(np.pad(speech.samples, (before, after)), phones, starts)


def _snr(recipe: SpeechRecipe, part: str, rng: np.random.Generator) -> float | None:
    """The signal-to-noise ratio in dB, None for a clean recording. Training has up to 20 dB less noise than the noisy
    test set."""
    if part == "test-noisy":
        return NOISY if recipe.noise is None else recipe.noise
    noisy = part == "train" and recipe.noise is not None and rng.random() < 0.5
    return recipe.noise + float(rng.uniform(0, 20)) if noisy and recipe.noise is not None else None


def _noise(samples: Array, snr: float | None, rng: np.random.Generator) -> Array:
    """Noise with a spectrum that falls like 1/f^a, a in [0, 1], in addition to that of the microphone."""
    noise = rng.normal(0, MICROPHONE, len(samples))
    if snr is not None:
        spectrum = np.fft.rfft(rng.normal(size=len(samples)))
        spectrum *= np.arange(1, len(spectrum) + 1) ** -rng.uniform(0, 1)
        coloured = np.fft.irfft(spectrum, len(samples))
        power = float(np.mean(samples.astype(np.float64) ** 2)) * 10 ** (-snr / 10)
        noise += coloured * np.sqrt(power / np.mean(coloured**2))
    return noise


def align(phones: Sequence[str], starts: Array, end: int, centres: Array) -> tuple[list[PhoneState], Array]:
    """The states of an utterance, and for each frame (by its middle sample) the index of its state."""
    left = [phones[0], *phones[:-1]]
    states = [PhoneState(*pair, third) for pair in zip(left, phones, strict=True) for third in range(3)]
    phone = np.maximum(np.searchsorted(starts, centres, "right") - 1, 0)
    lengths = np.diff(starts, append=end)
    third = np.clip(3 * (centres - starts[phone]) // np.maximum(lengths[phone], 1), 0, 2)
    return states, 3 * phone + third


def choose(states: Sequence[PhoneState], counts: Sequence[int] | Array, wanted: int) -> tuple[Array, list[str]]:
    """The class of each state (int32 [states]) and the classes' names.

    The most frequent states get classes of their own; all other states of one third of a phone share a class, whatever
    their left contexts. Together these are `wanted` classes, or fewer if there are not enough states. Raises BadInput
    if `wanted` is less than the number of thirds of phones.
    """
    order = sorted(range(len(states)), key=lambda number: (-counts[number], states[number]))
    seen = sum(count > 0 for count in counts)
    # Where each third of a phone stands last: the states after the k most frequent ones have those of k and later.
    last = sorted({states[number][1:]: place for place, number in enumerate(order)}.values())
    most = max((k for k in range(seen + 1) if k + len(last) - bisect_left(last, k) <= wanted), default=-1)
    if most < 0:
        raise BadInput(f"--classes {wanted}: the thirds of all phones alone are {len(last)}")
    kept, shared = order[:most], sorted({states[number][1:] for number in order[most:]})
    classes = [states[number] for number in kept] + [PhoneState("", *each) for each in shared]
    numbers = {state: number for number, state in enumerate(classes)}
    of = [numbers[state] if state in numbers else numbers[PhoneState("", *state[1:])] for state in states]
    return np.array(of, np.int32), [str(state) for state in classes]
