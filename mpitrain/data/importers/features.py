"""Read audio files with soundfile (WAV, FLAC, Ogg, MP3, AIFF, NIST SPHERE and others); log-mel features and deltas."""

import re
from mmap import ACCESS_READ, mmap

import numpy as np

from mpitrain.errors import BadInput, library, naming
from mpitrain.files import Record
from mpitrain.flat import Array

WINDOW, SHIFT = 0.025, 0.010  # seconds
REACH = 2  # frames on either side of a frame from which its deltas are computed
ENDINGS = {".wav", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff", ".au", ".sph", ".nist"}
FULL_SCALE = 32768  # samples are in units of int16, as in Kaldi
SLOWEST, FASTEST = 1_000, 1_000_000  # samples per second
LOUDEST = 2.0**31  # largest sample of a floating point file: full scale is 1, but some files use the scale of integers
SHORT, DENSEST = 1 << 26, 256  # most samples of a file, or samples per byte of the file; Opus reaches 64 per byte
BLOCK = 1 << 20  # samples read at a time
SPHERE = 1024  # bytes of the head of a SPHERE file
MPEG_1 = 32_000  # samples a second, from which on an MP3 is of MPEG-1
KBITS = *range(32, 64, 8), *range(64, 128, 16), *range(128, 256, 32), 256, 320  # bit rates of MPEG-1, layer III
KBITS_2 = *range(8, 64, 8), *range(64, 161, 16)  # those of MPEG-2
LESS = 2 * 1152  # most samples by which a right guess of an MP3's length is shorter than its frames
#: What the first frame of an MP3 may tell: how many frames follow, and perhaps the bytes of all.
XING = re.compile(rb"(?:Xing|Info)\0{3}(?:[\x01\x05\x09\x0d]|[\x03\x07\x0b\x0f].{4}(?P<bytes>.{4}))", re.DOTALL)
FRAME = re.compile(rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb]")  # the head of a frame of layer III
#: Lengths in heads of files that were written to a pipe; SoX tells the last one, rounded down to whole samples.
PIPED = 0xFFFFFFFF, *range(0x7FFFEFF9, 0x7FFFF001)
#: What libsndfile logs of the length of the samples, or of a file if it does not compare that of its samples.
LENGTHS = re.compile(r"^ *(?:data|SSND|Data Size|riff|Riff size) *: (\d+) \(should be (\d+)\)", re.MULTILINE)
UNTOLD = (1 << 63) - 1  # libsndfile's number of samples where a FLAC's head tells none, since it was written to a pipe
NEED = "prepare wav needs soundfile", "speech"


def preparation(rate: int, bins: int, deltas: bool) -> Record:
    """The description that distinguishes these features from others, with keys that all importers use."""
    shape = {"features": "log-mel", "sample_rate": rate, "bins": bins, "deltas": deltas}
    return {**shape, "window": WINDOW, "shift": SHIFT, "cmvn": "none", "norm_vars": False}


def frame_centres(count: int, rate: int) -> Array:
    """The middle sample of each whole window in `count` samples, int64 [frames]."""
    window, shift = int(rate * WINDOW), int(rate * SHIFT)
    return np.arange(window // 2, count - window + window // 2 + 1, shift)


def log_mel(samples: Array, rate: int, bins: int, deltas: bool = False) -> Array:
    """Log-mel features float32 [frames, bins] of a signal [n] in units of int16, as Kaldi computes them without dither;
    [frames, 3·bins] `with_deltas` if `deltas`. Raises BadInput for too many bins."""
    kaldi_native_fbank = library("kaldi_native_fbank", "log-mel features need kaldi-native-fbank", "speech")
    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.samp_freq = rate
    options.frame_opts.frame_length_ms, options.frame_opts.frame_shift_ms = WINDOW * 1e3, SHIFT * 1e3
    options.frame_opts.dither = 0.0
    options.frame_opts.snip_edges = True
    options.mel_opts.num_bins = bins
    with naming(f"{bins} log-mel features are too many at {rate:,} samples a second", ValueError):
        fbank = kaldi_native_fbank.OnlineFbank(options)
    fbank.accept_waveform(rate, samples.astype(np.float32))
    fbank.input_finished()
    frames = [fbank.get_frame(number) for number in range(fbank.num_frames_ready)]
    static = np.array(frames, np.float32).reshape(-1, bins)
    return with_deltas(static) if deltas and frames else static


def with_deltas(static: Array) -> Array:
    """float32 [frames, 3·dims]: the features, then their first and second order deltas.

    d_t = Σ_n n·(c_{t+n} − c_{t−n}) ÷ 2·Σ_n n², n = 1 … REACH, edge frames repeated (Young et al., The HTK Book, §5.9).
    """
    first = _deltas(static)
    return np.concatenate([static, first, _deltas(first)], axis=1)


def _deltas(features: Array) -> Array:
    padded = np.pad(features, ((REACH, REACH), (0, 0)), mode="edge")
    count, total = len(features), np.zeros_like(features)
    for n in range(1, REACH + 1):
        total += n * (padded[REACH + n : REACH + n + count] - padded[REACH - n : REACH - n + count])
    return total / np.float32(2 * sum(n * n for n in range(1, REACH + 1)))


def about(path: str) -> tuple[int, int]:
    """The sampling rate and the number of samples. Raises BadInput naming a file that cannot be used."""
    soundfile = library("soundfile", *NEED)
    with naming(path), naming(f"{path}: not a recording", soundfile.SoundFileError):
        with open(path, "rb") as file:
            head = file.read(SPHERE)
            size = file.seek(0, 2)
        found = soundfile.info(path)
    if lack := _lacking(head, found.frames, found.extra_info):
        raise BadInput(f"{path}: {lack}")
    if found.channels != 1:
        raise BadInput(f"{path}: {found.channels} channels, expected one")
    if not SLOWEST <= found.samplerate <= FASTEST:
        rate = f"{found.samplerate:,} samples a second"
        raise BadInput(f"{path}: {rate}, expected {SLOWEST:,} to {FASTEST:,}")
    if found.format == "MP3" and _unannounced(path, found.samplerate) > found.frames + LESS:
        raise BadInput(f"{path}: an MP3 of varying bit rate that does not tell its length; convert it")
    if found.frames == UNTOLD:
        raise BadInput(f"{path}: its head does not tell how many samples follow; convert it")
    if not 0 < found.frames <= max(SHORT, DENSEST * size):
        raise BadInput(f"{path}: {found.frames:,} samples by its head, in a file of {size:,} bytes")
    return found.samplerate, found.frames


def _unannounced(path: str, rate: int) -> int:
    """The samples in an MP3's frames, by the head of each; 0 if its first frame tells how many there are.

    If it does not, libsndfile guesses them from the first frame's bit rate, and reads no more than that. Of joined MP3s
    it reads what the first one tells. Raises BadInput for these.
    """
    with naming(path), open(path, "rb") as file:
        content = mmap(file.fileno(), 0, access=ACCESS_READ)
    place, samples = _past_tags(content, 0), 0
    while 0 <= (place := content.find(b"\xff", place)) < len(content) - 2:
        layer, number = content[place + 1] & 0xE6, content[place + 2] >> 4
        if layer != 0xE2 or not 0 < number < 15:
            place += 1
            continue
        bits = 1000 * (KBITS_2 if rate < MPEG_1 else KBITS)[number - 1]
        length = (72 if rate < MPEG_1 else 144) * bits // rate + (content[place + 2] >> 1 & 1)
        if not samples and (told := XING.search(content, place, place + 64)):
            rest = _past_tags(content, place + int.from_bytes(told["bytes"] or b"", "big"))
            if told["bytes"] and FRAME.match(content, rest) and len(content) - rest > 2 * length:
                raise BadInput(f"{path}: several MP3s, of which the first tells only its own length; convert it")
            return 0
        place += length
        samples += 576 if rate < MPEG_1 else 1152
    return samples


def _past_tags(content: mmap, place: int) -> int:
    """The place after the ID3 tags that begin at this one."""
    while content[place : place + 3] == b"ID3":  # the length of a tag is in the lower 7 bits of four bytes
        place += 10 + sum(byte << 7 * (3 - number) for number, byte in enumerate(content[place + 6 : place + 10]))
    return place


def _lacking(head: bytes, samples: int, log: str) -> str:
    """A message that parts of the file are missing, "" if none are. libsndfile reads what is left of a truncated file,
    and reports that only in its log, for SPHERE not at all."""
    for told, there in LENGTHS.findall(log):
        if int(there) < int(told) not in PIPED:
            return f"truncated: {int(told):,} bytes by its head, there are {int(there):,}"
    if ogg := re.search(r"^Ogg ?: (.+)", log, re.MULTILINE):  # for an intact file, the log has no such line
        return f"damaged: {ogg[1]}"
    sphere = re.match(rb"NIST_1A\s.*?^sample_count -i (\d+)\s", head, re.MULTILINE | re.DOTALL)
    if sphere and samples < int(sphere[1]):
        return f"truncated: {int(sphere[1]):,} samples by its head, there are {samples:,}"
    return ""


def read_samples(path: str) -> Array:
    """Read the samples, float32 [n], in units of int16. Raises BadInput naming the file."""
    soundfile = library("soundfile", *NEED)
    with naming(f"{path}: not a recording", soundfile.SoundFileError), soundfile.SoundFile(path) as file:
        if lack := _lacking(b"", file.frames, file.extra_info):  # since `about` has looked
            raise BadInput(f"{path}: {lack}")
        file.seekable = lambda: False  # or soundfile seeks to where it is after each block, which spoils MP3
        blocks = [np.empty(0, np.float32)]
        while len(block := file.read(BLOCK, dtype="float32")):  # the header may claim more samples than fit in memory
            blocks.append(block)
        samples = np.concatenate(blocks)
        if len(samples) != file.frames and not (file.format == "MP3" and _unannounced(path, file.samplerate)):
            raise BadInput(f"{path}: truncated: {len(samples):,} of {file.frames:,} samples")
    if not np.isfinite(samples).all():
        raise BadInput(f"{path}: samples that are not finite numbers")
    if (loudest := np.abs(samples).max(initial=0)) > LOUDEST:
        raise BadInput(f"{path}: a sample of {loudest:g}, where 1 is full scale")
    samples *= np.float32(FULL_SCALE)
    return samples
