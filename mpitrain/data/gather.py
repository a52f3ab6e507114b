"""Fill a minibatch in one pass over memory."""

import numpy as np
from numba import njit

from mpitrain.flat import Array


@njit(cache=True, nogil=True)
def gather_windows(
    features: Array, base: int, offsets: Array, indices: Array, places: Array, left: int, out: Array
) -> None:
    """out[places[k], w] = features of frame indices[k] + w − left, repeating the edge frames of its utterance.

    `features` [m, dims] begins at frame `base` of the corpus; `offsets` [utterances+1]; `out` [n, window, dims].
    """
    window, dims = out.shape[1], out.shape[2]
    for k in range(indices.size):
        frame = indices[k]
        after = np.searchsorted(offsets, frame, "right")
        first, last = offsets[after - 1], offsets[after] - 1
        for w in range(window):
            row = min(max(frame + w - left, first), last) - base
            for d in range(dims):
                out[places[k], w, d] = features[row, d]


def gather_tokens(rows: Array, base: int, starts: Array, places: Array, inputs: Array, targets: Array) -> None:
    """inputs[places[k]] = the tokens from starts[k] on, and targets[places[k]] those from starts[k] + 1 on.

    `rows` [m] begins at token `base` of the corpus; `inputs` and `targets` [n, window].
    """
    window = inputs.shape[1]
    for start, place in zip(starts - base, places, strict=True):
        inputs[place] = rows[start : start + window]
        targets[place] = rows[start + 1 : start + window + 1]


@njit(cache=True, nogil=True)
def gather_images(
    images: Array,
    base: int,
    mean: Array,
    scale: Array,
    indices: Array,
    places: Array,
    corners: Array,
    shifts: Array,
    out: Array,
) -> None:
    """out[places[k]] = (view of image indices[k] − mean)·scale + shift, per channel; these and `out` have one dtype.

    `images` uint8 [m, h, w, c] begins at image `base` of the corpus; `out` [n, rows, columns, c]. The crop of sample p
    begins at row corners[p, 0] and column corners[p, 1] and is reflected if corners[p, 2] is 1.
    """
    rows, columns, channels = out.shape[1], out.shape[2], out.shape[3]
    # A row is one loop over numbers that lie side by side, in which the processor computes many at a time.
    length = columns * channels
    means, scales, moved = np.empty((3, length), out.dtype)
    mirrored, opposite = np.empty(length, images.dtype), np.empty(length, np.int64)
    for i in range(length):
        means[i], scales[i] = mean[i % channels], scale[i % channels]
        opposite[i] = length - channels - i + 2 * (i % channels)  # the same channel of the opposite column
    for k in range(indices.size):
        place = places[k]
        image, view = images[indices[k] - base], out[place]
        top, left, reflected = corners[place, 0], corners[place, 1], corners[place, 2]
        for i in range(length):
            moved[i] = shifts[place, i % channels]
        for row in range(rows):
            pixels, to = image[top + row, left : left + columns].reshape(length), view[row].reshape(length)
            if reflected:
                for i in range(length):
                    mirrored[i] = pixels[opposite[i]]
                pixels = mirrored
            for i in range(length):
                to[i] = (mean.dtype.type(pixels[i]) - means[i]) * scales[i] + moved[i]
