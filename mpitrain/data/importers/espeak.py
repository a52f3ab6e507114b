"""espeak-ng through its C interface: synthesised speech, with the sample at which each phone begins.

The library keeps state between utterances (phase, flutter, echo) and seeds its random numbers from the clock. It is
therefore reloaded and reseeded for each utterance, which takes half a millisecond: the same voice and text always give
the same samples.
"""

import _ctypes
import ctypes
from typing import NamedTuple

import numpy as np

from mpitrain.errors import BadInput, library
from mpitrain.flat import Array

RATE = 22050  # samples per second
PAUSE = "_"
SHORT_PAUSE = RATE // 20  # samples

_SYNCHRONOUS, _PHONEMES_AS_IPA, _UTF8 = 2, 1 | 2, 1
_PHONEME_EVENT = 7
_WORDS_A_MINUTE, _PITCH, _RANGE = 1, 3, 4  # espeak_PARAMETER


class Voice(NamedTuple):
    """A speaker: espeak's voice variant, pitch and pitch range (0 to 100), rate in words per minute."""

    variant: str
    pitch: int
    range: int
    rate: int


class Speech(NamedTuple):
    """`samples` int16 at RATE; phones (IPA without stress, or PAUSE) begin at `starts` int64, increasing from 0."""

    samples: Array
    phones: list[str]
    starts: Array


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),  # a union, which holds the name of a phone
    )


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


def speak(language: str, voice: Voice, text: str) -> Speech:
    """Synthesise a text. Raises BadInput if the wheel is missing or lacks the language or variant."""
    pieces: list[Array] = []
    events: list[tuple[int, str]] = []

    def collect(samples: "ctypes._Pointer[ctypes.c_short]", count: int, event: "ctypes._Pointer[_Event]") -> int:
        if samples and count > 0:
            pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        number = 0
        while event[number].type:
            if event[number].type == _PHONEME_EVENT:
                events.append((event[number].sample, _phone(event[number].id)))
            number += 1
        return 0

    callback = _CALLBACK(collect)
    espeak = _load()
    try:
        espeak.espeak_SetSynthCallback(callback)
        name = f"{language}+{voice.variant}"
        if espeak.espeak_SetVoiceByName(name.encode()):
            raise BadInput(f"espeak-ng has no voice {name}")
        for parameter, value in ((_WORDS_A_MINUTE, voice.rate), (_PITCH, voice.pitch), (_RANGE, voice.range)):
            espeak.espeak_SetParameter(parameter, value, 0)
        encoded = text.encode()
        espeak.espeak_Synth(encoded, ctypes.c_size_t(len(encoded) + 1), 0, 1, 0, _UTF8, None, None)
    finally:
        espeak.espeak_Terminate()
        _ctypes.dlclose(espeak._handle)
    return _speech(np.concatenate(pieces) if pieces else np.empty(0, np.int16), events)


def _load() -> ctypes.CDLL:
    espeakng_loader = library("espeakng_loader", "prepare speech needs espeak-ng", "speech")
    espeak = ctypes.CDLL(str(espeakng_loader.get_library_path()))
    ctypes.CDLL(None).srand(1)
    data = str(espeakng_loader.get_data_path()).encode()
    if espeak.espeak_Initialize(_SYNCHRONOUS, 0, data, _PHONEMES_AS_IPA) != RATE:
        raise BadInput("espeak-ng could not be started with its data")
    espeak.espeak_ng_SetRandSeed(ctypes.c_long(1))  # otherwise the clock's second is the seed
    return espeak


def _phone(name: bytes) -> str:
    # The eight bytes may end within a character; "(en)" marks a change of language and is not spoken.
    text = name.decode(errors="ignore").strip("ˈˌ")
    return "" if text.startswith("(") else text or PAUSE


def _speech(samples: Array, events: list[tuple[int, str]]) -> Speech:
    """Keep phones with a duration; a short pause, such as a stop's closure, is joined to the phone that follows."""
    spoken = [(start, phone) for start, phone in events if phone and start < len(samples)]
    phones, starts = [PAUSE], [0]
    for start, phone in spoken:
        closure = phones[-1] == PAUSE and start - starts[-1] < SHORT_PAUSE
        if closure or start <= starts[-1]:
            phones[-1] = phone
        elif phone != PAUSE or phones[-1] != PAUSE:
            phones.append(phone)
            starts.append(start)
    return Speech(samples, phones, np.array(starts, np.int64))
