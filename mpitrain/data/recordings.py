"""Read audio files with soundfile: WAV, FLAC, Ogg, MP3, AIFF, NIST SPHERE and others."""

import numpy as np

from mpitrain.errors import BadInput, library, naming
from mpitrain.flat import Array

ENDINGS = {".wav", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff", ".au", ".sph", ".nist"}
FULL_SCALE = 32768  # samples are in units of int16, as in Kaldi
SLOWEST, FASTEST = 1_000, 1_000_000  # samples per second
LOUDEST = 2.0**31  # largest sample of a floating point file: full scale is 1, but some files use the scale of integers
SHORT, DENSEST = 1 << 26, 256  # most samples of a file, or samples per byte of the file; Opus reaches 64 per byte
BLOCK = 1 << 20  # samples read at a time
NEED = "prepare wav needs soundfile", "speech"


def about(path: str) -> tuple[int, int]:
    """The sampling rate and the number of samples. Raises BadInput naming a file that cannot be used."""
    soundfile = library("soundfile", *NEED)
    with naming(path), naming(f"{path}: not a recording", soundfile.SoundFileError):
        with open(path, "rb") as file:
            head = file.read(12)
            size = file.seek(0, 2)
        found = soundfile.info(path)
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
    soundfile = library("soundfile", *NEED)
    with naming(f"{path}: not a recording", soundfile.SoundFileError), soundfile.SoundFile(path) as file:
        blocks = [np.empty(0, np.float32)]
        while len(block := file.read(BLOCK, dtype="float32")):  # the header may claim more samples than fit in memory
            blocks.append(block)
        samples = np.concatenate(blocks)
        if len(samples) != file.frames:
            raise BadInput(f"{path}: truncated: {len(samples):,} of {file.frames:,} samples")
    if not np.isfinite(samples).all():
        raise BadInput(f"{path}: samples that are not finite numbers")
    if (loudest := np.abs(samples).max(initial=0)) > LOUDEST:
        raise BadInput(f"{path}: a sample of {loudest:g}, where 1 is full scale")
    samples *= np.float32(FULL_SCALE)
    return samples
