"""Read audio files with soundfile: WAV, FLAC, Ogg, MP3, AIFF, NIST SPHERE and others."""

from typing import Any

import numpy as np

from mpitrain.errors import BadInput
from mpitrain.flat import Array

ENDINGS = {".wav", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff", ".au", ".sph", ".nist"}
FULL_SCALE = 32768  # samples are in units of int16, as in Kaldi
SLOWEST, FASTEST = 1_000, 1_000_000  # samples per second
LOUDEST = 2.0**31  # largest sample of a floating point file: full scale is 1, but some files use the scale of integers
SHORT, DENSEST = 1 << 26, 256  # most samples of a file, or samples per byte of the file; Opus reaches 64 per byte
BLOCK = 1 << 20  # samples read at a time


def about(path: str) -> tuple[int, int]:
    """The sampling rate and the number of samples. Raises BadInput naming a file that cannot be used."""
    soundfile = _soundfile()
    try:
        with open(path, "rb") as file:
            head = file.read(12)
            size = file.seek(0, 2)
        found = soundfile.info(path)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    except soundfile.SoundFileError as error:
        raise BadInput(f"{path}: not a recording: {_reason(error)}") from error
    told = int.from_bytes(head[4:8], "little") + 8
    if head[:4] == b"RIFF" and told > size and told - 8 != 0xFFFFFFFF:
        raise BadInput(f"{path}: truncated: {told:,} bytes by its head, there are {size:,}")
    if found.channels != 1:
        raise BadInput(f"{path}: {found.channels} channels, expected one")
    if not SLOWEST <= found.samplerate <= FASTEST:
        rate = f"{found.samplerate:,} samples a second"
        raise BadInput(f"{path}: {rate}, expected {SLOWEST:,} to {FASTEST:,}")
    if found.frames > max(SHORT, DENSEST * size):
        raise BadInput(f"{path}: {found.frames:,} samples by its head, in a file of {size:,} bytes")
    return found.samplerate, found.frames


def read_samples(path: str) -> Array:
    """Read the samples, float32 [n], in units of int16. Raises BadInput naming the file."""
    soundfile = _soundfile()
    try:
        with soundfile.SoundFile(path) as file:
            samples = _read_all(file)
            if len(samples) != file.frames:
                raise BadInput(f"{path}: truncated: {len(samples):,} of {file.frames:,} samples")
    except soundfile.SoundFileError as error:
        raise BadInput(f"{path}: not a recording: {_reason(error)}") from error
    if not np.isfinite(samples).all():
        raise BadInput(f"{path}: samples that are not finite numbers")
    if (loudest := np.abs(samples).max(initial=0)) > LOUDEST:
        raise BadInput(f"{path}: a sample of {loudest:g}, where 1 is full scale")
    samples *= np.float32(FULL_SCALE)
    return samples


def _read_all(file: Any) -> Array:
    """Read the file block by block, since its header may claim more samples than fit in memory."""
    blocks = [np.empty(0, np.float32)]
    while len(block := file.read(BLOCK, dtype="float32")):
        blocks.append(block)
    return np.concatenate(blocks)


def _reason(error: Exception) -> str:
    return str(getattr(error, "error_string", error)).strip(" .")


def _soundfile():  # type: ignore[no-untyped-def]
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: the package is there without its C library
        raise BadInput("prepare wav needs soundfile: pip install mpitrain[speech]") from error
    return soundfile
