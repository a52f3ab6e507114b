"""The loops that fill a minibatch: one pass over memory, nothing allocated."""

from numba import njit

from mpitrain.flat import Array


@njit(cache=True, nogil=True)
def gather_windows(
    features: Array, base: int, offsets: Array, indices: Array, places: Array, left: int, out: Array
) -> None:
    """out[places[k], w] = features of frame indices[k] + w − left, edge frames of its utterance repeated.

    `features` [m, dims] begins at frame `base` of the corpus; `offsets` [utterances+1]; `out` [n, window, dims].
    """
    window, dims = out.shape[1], out.shape[2]
    for k in range(indices.size):
        frame = indices[k]
        low, high = 0, offsets.size - 1  # offsets[low] <= frame < offsets[high]
        while high - low > 1:
            middle = (low + high) // 2
            if offsets[middle] <= frame:
                low = middle
            else:
                high = middle
        first, last = offsets[low], offsets[high] - 1
        for w in range(window):
            row = min(max(frame + w - left, first), last) - base
            for d in range(dims):
                out[places[k], w, d] = features[row, d]


@njit(cache=True, nogil=True)
def gather_images(
    images: Array, base: int, mean: Array, scale: Array, indices: Array, places: Array, out: Array
) -> None:
    """out[places[k]] = (image indices[k] − mean)·scale, per channel, in the dtype of `mean`, `scale` and `out`.

    `images` uint8 [m, pixels, channels] begins at image `base` of the corpus; `out` [n, pixels, channels].
    """
    pixels, channels = out.shape[1], out.shape[2]
    for k in range(indices.size):
        image = images[indices[k] - base]
        for p in range(pixels):
            for c in range(channels):
                out[places[k], p, c] = (mean.dtype.type(image[p, c]) - mean[c]) * scale[c]
