"""Images: cropped, augmented, normalised and converted to floating point numbers in one pass over memory."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit

from mpitrain.data.augmentation import Views, colour_axes
from mpitrain.data.kinds import InputKind, Reading
from mpitrain.data.normalising import of_pixels
from mpitrain.data.reader import ShardFile
from mpitrain.data.rows import Rows
from mpitrain.data.validation import Attributes
from mpitrain.errors import BadInput
from mpitrain.flat import Array, share
from mpitrain.sampling.batch import Batch, Place, SampleForm

SHARE = 1 << 20  # bytes of a minibatch's pixels for which another thread saves time


class Images(InputKind):
    """Images [h, w, c]. Mean and 1 ÷ standard deviation are those of channels."""

    def __init__(self, files: list[ShardFile], attributes: Attributes, reading: Reading) -> None:
        first, augmentation, dtype = files[0], reading.augmentation, reading.dtype
        reading.refuse_window(first)
        if any(reading.context):
            raise BadInput(f"data.context = {list(reading.context)}: images have no neighbouring frames")
        height, width, channels = first.inputs[1:]
        self.form = SampleForm(augmentation.shape((height, width, channels)), pixels=True)
        self._mean, self._scale = of_pixels(reading.normalise, attributes, channels, dtype)
        axes = None
        if augmentation.colour_shift:
            covariance = np.asarray(attributes.get("covariance", 0.0))
            if covariance.shape != (3, 3):
                raise BadInput(f"{first.path}: has no covariance of three colours, which data.colour_shift needs")
            axes = colour_axes(covariance, self._scale, augmentation.colour_shift)
        room = height - self.form.shape[0], width - self.form.shape[1]
        self._views = Views(augmentation, room, channels, axes, dtype)
        self._threads, self._pool = reading.threads, ThreadPoolExecutor(reading.threads, "pixels")

    def gather(self, rows: Rows, indices: Array, out: Batch, place: Place) -> None:
        views = self._views.at(place, len(indices))
        for base, images, which, places in rows.spans(indices, (0, 0)):
            self._see(images, base, which, places, views, out.inputs)

    def _see(
        self, images: Array, base: int, which: Array, places: Array, views: tuple[Array, Array], out: Array
    ) -> None:
        """`gather_images`, in threads if there is enough for them to do."""
        shares = min(self._threads, len(which), 1 + len(which) * out[:1].nbytes // SHARE)

        def see(rank: int) -> None:
            part = share(len(which), rank, shares)
            gather_images(images, base, self._mean, self._scale, which[part], places[part], *views, out)

        if shares == 1:
            see(0)
        else:
            deque(self._pool.map(see, range(shares)), maxlen=0)  # raises what a thread has raised


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
