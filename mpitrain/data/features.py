"""Log-mel filter banks and their time derivatives."""

import numpy as np

from mpitrain.errors import BadInput, library
from mpitrain.files import Record
from mpitrain.flat import Array

WINDOW, SHIFT = 0.025, 0.010  # seconds


def preparation(rate: int, bins: int, deltas: bool) -> Record:
    """The description that distinguishes these features from others, with keys that all importers use."""
    shape = {"features": "log-mel", "sample_rate": rate, "bins": bins, "deltas": deltas}
    return {**shape, "window": WINDOW, "shift": SHIFT, "cmvn": "none", "norm_vars": False}


def frame_centres(count: int, rate: int) -> Array:
    """The middle sample of each whole window in `count` samples, int64 [frames]."""
    window, shift = int(rate * WINDOW), int(rate * SHIFT)
    return np.arange(window // 2, count - window + window // 2 + 1, shift)


def log_mel(samples: Array, rate: int, bins: int) -> Array:
    """float32 [frames, bins] of a signal [n] in units of int16, as Kaldi computes them, without dither."""
    kaldi_native_fbank = library("kaldi_native_fbank", "log-mel features need kaldi-native-fbank", "speech")
    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.samp_freq = rate
    options.frame_opts.frame_length_ms, options.frame_opts.frame_shift_ms = WINDOW * 1e3, SHIFT * 1e3
    options.frame_opts.dither = 0.0
    options.frame_opts.snip_edges = True
    options.mel_opts.num_bins = bins
    try:
        fbank = kaldi_native_fbank.OnlineFbank(options)
    except ValueError as error:
        raise BadInput(f"{bins} log-mel features are too many at {rate:,} samples a second: {error}") from error
    fbank.accept_waveform(rate, samples.astype(np.float32))
    fbank.input_finished()
    frames = [fbank.get_frame(number) for number in range(fbank.num_frames_ready)]
    return np.array(frames, np.float32).reshape(-1, bins)


def with_deltas(static: Array, reach: int = 2) -> Array:
    """float32 [frames, 3·dims]: the features, then their first and second order deltas.

    d_t = Σ_n n·(c_{t+n} − c_{t−n}) ÷ 2·Σ_n n², n = 1 … reach, edge frames repeated (Young et al., The HTK Book, §5.9).
    """
    first = _deltas(static, reach)
    return np.concatenate([static, first, _deltas(first, reach)], axis=1)


def _deltas(features: Array, reach: int) -> Array:
    padded = np.pad(features, ((reach, reach), (0, 0)), mode="edge")
    count, total = len(features), np.zeros_like(features)
    for n in range(1, reach + 1):
        total += n * (padded[reach + n : reach + n + count] - padded[reach - n : reach - n + count])
    return total / np.float32(2 * sum(n * n for n in range(1, reach + 1)))
